// Parts of top_logprobs for one row in host memory.
#pragma once

#include <cstdint>
#include <span>

namespace fathom {

/// log(sum(exp(x))) in float64.
double log_sum_exp(std::span<const float> x);

/// The places of the places.size() largest values, best first, lower places first on ties. As many
/// as there are values at most; no value is NaN.
void find_largest(std::span<const float> x, std::span<int32_t> places);

}  // namespace fathom
