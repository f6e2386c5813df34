// config.md: what the symbols of the other documents stand for.
#pragma once

#include <string>

#include "fathom/report/recording.h"

namespace fathom {

/// Settings, configuration with symbols, sizes derived from them, symbols of the steps, weights.
std::string write_config_doc(const Recording& recording);

}  // namespace fathom
