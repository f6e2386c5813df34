// config.json of a small random checkpoint.
#pragma once

#include <cstdint>

#include "fathom/models/synth.h"
#include "fathom/text/json.h"

namespace fathom {

inline constexpr int64_t kSynthVocab = 320;  // bytes, control tokens, and some ids without a token

/// What distinguishes the families, for a model of these sizes. Options are in range.
Json synth_config(const SynthOptions& options);

}  // namespace fathom
