// layer.svg: one layer of a step as a picture, op by op.
#pragma once

#include <string>
#include <string_view>

#include "fathom/report/recording.h"

namespace fathom {

/// The last kind of layer of that phase (the one with experts where any has), in the order of its
/// calls: boxes are scopes, lines are ops with kernel, results and bytes; a rail joins the ops that
/// the residual `h` runs through. Empty where the phase or a layer is missing.
std::string write_layer_picture(const Recording& recording, std::string_view phase);

}  // namespace fathom
