#include "fathom/serve/load/variates.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fathom::serve {

double uniform_double(Rng& rng) {
  return static_cast<double>(rng.next_u64() >> 11) * 0x1p-53;
}

double normal_double(Rng& rng) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform_double(rng)));
  return radius * std::cos(2.0 * std::numbers::pi * uniform_double(rng));
}

double exponential_double(Rng& rng, double mean) {
  return -mean * std::log(1.0 - uniform_double(rng));
}

double gamma_double(Rng& rng, double shape) {
  if (shape < 1.0) {
    // Gamma(a) = Gamma(a + 1) * U^(1/a).
    const double larger = gamma_double(rng, shape + 1.0);
    return larger * std::pow(1.0 - uniform_double(rng), 1.0 / shape);
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = normal_double(rng);
    const double v = std::pow(1.0 + c * x, 3);
    if (v <= 0) continue;
    const double u = 1.0 - uniform_double(rng);
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

int64_t lognormal_length(Rng& rng, double median, double sigma, int64_t low, int64_t high) {
  const double drawn = median * std::exp(sigma * normal_double(rng));
  return static_cast<int64_t>(
      std::lround(std::clamp(drawn, static_cast<double>(low), static_cast<double>(high))));
}

}  // namespace fathom::serve
