#include "fathom/layers/input_amax.h"

#include <cmath>
#include <type_traits>

#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

template <class T>
void note_rows(const View& x, int64_t begin, int64_t end, float& amax) {
  for (int64_t row = begin; row < end; ++row) {
    const T* at = x.row<const T>(row);
    for (int64_t k = 0; k < x.dim(1); ++k) {
      float value;
      if constexpr (std::is_same_v<T, float>) {
        value = at[k];
      } else {
        value = to_float(at[k]);
      }
      // Once NaN it stays: no comparison with it holds.
      const float magnitude = std::abs(value);
      if (magnitude > amax || std::isnan(magnitude)) amax = magnitude;
    }
  }
}

void note(const View& x, int64_t begin, int64_t end, float& amax) {
  if (x.format == Format::kF32) {
    note_rows<float>(x, begin, end, amax);
  } else {
    note_rows<Bf16>(x, begin, end, amax);
  }
}

}  // namespace

void note_input_amax(const View& x, const View& amax) {
  note(x, 0, x.dim(0), *amax.as<float>());
}

void note_expert_amax(const View& x, const View& offsets, const View& amax) {
  const auto* first = offsets.as<const int32_t>();
  for (int64_t e = 0; e < amax.dim(0); ++e)
    note(x, first[e], first[e + 1], amax.as<float>()[e]);
}

}  // namespace fathom
