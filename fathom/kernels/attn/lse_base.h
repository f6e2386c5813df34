// The base of a log-sum-exp.
#pragma once

#include <cstdint>

namespace fathom {

/// The base in which a log-sum-exp was taken.
enum class LseBase : uint8_t {
  kE,  ///< natural: what kernels of ours write unless told otherwise
  k2,  ///< FlashInfer's kernels; mixing the two gives a plausible wrong result
};

}  // namespace fathom
