#include "fathom/formats/quant_input.h"

#include <cmath>

namespace fathom {

float amax_of(const float* x, int64_t count) {
  float amax = 0.0f;
  for (int64_t i = 0; i < count; ++i)
    amax = std::fmax(amax, std::fabs(x[i]));
  return amax;
}

Status check_weights_finite(const float* weights, int64_t n, int64_t k) {
  for (int64_t i = 0; i < n * k; ++i) {
    if (!std::isfinite(weights[i])) [[unlikely]] {
      return numerical_error(str_cat("weight at row ", i / k, ", column ", i % k, " is ",
                                     weights[i], ", expected a finite value"));
    }
  }
  return {};
}

Status check_block_multiple(int64_t k, int64_t block, std::string_view format_name) {
  if (k % block == 0) return {};
  return invalid_argument(
      str_cat(format_name, " needs rows of a multiple of ", block, " values, got ", k));
}

}  // namespace fathom
