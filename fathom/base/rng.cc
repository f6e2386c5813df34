#include "fathom/base/rng.h"

#include <cmath>
#include <numbers>

namespace fathom {

float normal_from_u32(uint32_t word0, uint32_t word1) {
  const float u = static_cast<float>((word0 >> 8) + 1) * 0x1p-24f;
  const float angle = 2.0f * std::numbers::pi_v<float> * uniform_from_u32(word1);
  return std::sqrt(-2.0f * std::log(u)) * std::cos(angle);
}

}  // namespace fathom
