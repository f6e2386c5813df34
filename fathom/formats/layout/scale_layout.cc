#include "fathom/formats/layout/scale_layout.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "fathom/base/check.h"
#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

using OffsetFunction = int64_t (*)(int64_t m, int64_t k, int64_t num_scales);

void scatter(const uint8_t* linear,
             int64_t m,
             int64_t num_scales,
             OffsetFunction offset,
             uint8_t* swizzled) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < num_scales; ++k) {
      swizzled[offset(i, k, num_scales)] = linear[i * num_scales + k];
    }
  }
}

void gather(const uint8_t* swizzled,
            int64_t m,
            int64_t num_scales,
            OffsetFunction offset,
            uint8_t* linear) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < num_scales; ++k) {
      linear[i * num_scales + k] = swizzled[offset(i, k, num_scales)];
    }
  }
}

template <class Scale>
std::optional<int64_t> find_bad(std::span<const Scale> scales, ZeroScale zero) {
  for (size_t i = 0; i < scales.size(); ++i) {
    float value = 0.0f;
    if constexpr (std::is_same_v<Scale, float>) {
      value = scales[i];
    } else {
      value = to_float(scales[i]);
    }
    const bool is_good = std::isfinite(value) && value >= 0.0f;
    if (!is_good || (value == 0.0f && zero == ZeroScale::kRefused)) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace

void swizzle_128x4(const uint8_t* linear, int64_t m, int64_t num_scales, uint8_t* swizzled) {
  std::fill_n(swizzled, swizzled_128x4_bytes(m, num_scales), uint8_t{0});
  scatter(linear, m, num_scales, swizzled_128x4_offset, swizzled);
}

void swizzle_8x4(const uint8_t* linear, int64_t m, int64_t num_scales, uint8_t* swizzled) {
  std::fill_n(swizzled, swizzled_8x4_bytes(m, num_scales), uint8_t{0});
  scatter(linear, m, num_scales, swizzled_8x4_offset, swizzled);
}

void unswizzle_128x4(const uint8_t* swizzled, int64_t m, int64_t num_scales, uint8_t* linear) {
  gather(swizzled, m, num_scales, swizzled_128x4_offset, linear);
}

void unswizzle_8x4(const uint8_t* swizzled, int64_t m, int64_t num_scales, uint8_t* linear) {
  gather(swizzled, m, num_scales, swizzled_8x4_offset, linear);
}

void blockscale_offsets(std::span<const int32_t> rows, std::span<int32_t> offsets) {
  FATHOM_CHECK(offsets.size() == rows.size() + 1,
               str_cat(offsets.size(), " offsets for ", rows.size(), " experts"));
  int64_t offset = 0;
  for (size_t e = 0; e < rows.size(); ++e) {
    offsets[e] = static_cast<int32_t>(offset);
    offset += align_up<int64_t>(rows[e], kSwizzleRows);
    FATHOM_CHECK(offset <= INT32_MAX, str_cat(offset, " scale rows"));
  }
  offsets.back() = static_cast<int32_t>(offset);
}

void scales_to_column_major(
    const float* linear, int64_t m, int64_t num_scales, int64_t stride, float* column_major) {
  FATHOM_CHECK(stride >= m, str_cat("stride ", stride, " of columns of ", m, " rows"));
  for (int64_t k = 0; k < num_scales; ++k) {
    for (int64_t i = 0; i < stride; ++i) {
      column_major[k * stride + i] = i < m ? linear[i * num_scales + k] : 0.0f;
    }
  }
}

void scales_from_column_major(
    const float* column_major, int64_t m, int64_t num_scales, int64_t stride, float* linear) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < num_scales; ++k) {
      linear[i * num_scales + k] = column_major[k * stride + i];
    }
  }
}

void scales_to_packed_ue8m0(const Ue8m0* linear, int64_t m, int64_t num_scales, uint32_t* packed) {
  const int64_t stride = tma_aligned_stride(m);
  std::fill_n(packed, packed_ue8m0_words(m, num_scales), 0u);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < num_scales; ++k) {
      const uint32_t byte = linear[i * num_scales + k].bits;
      packed[k / 4 * stride + i] |= byte << (8 * (k % 4));
    }
  }
}

void scales_from_packed_ue8m0(const uint32_t* packed,
                              int64_t m,
                              int64_t num_scales,
                              Ue8m0* linear) {
  const int64_t stride = tma_aligned_stride(m);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < num_scales; ++k) {
      const uint32_t word = packed[k / 4 * stride + i];
      linear[i * num_scales + k] = Ue8m0{static_cast<uint8_t>(word >> (8 * (k % 4)))};
    }
  }
}

std::optional<int64_t> first_bad_scale(std::span<const float> scales, ZeroScale zero) {
  return find_bad(scales, zero);
}

std::optional<int64_t> first_bad_scale(std::span<const F16> scales, ZeroScale zero) {
  return find_bad(scales, zero);
}

std::optional<int64_t> first_bad_scale(std::span<const Bf16> scales, ZeroScale zero) {
  return find_bad(scales, zero);
}

std::optional<int64_t> first_bad_scale(std::span<const E4m3> scales, ZeroScale zero) {
  return find_bad(scales, zero);
}

std::optional<int64_t> first_bad_scale(std::span<const Ue8m0> scales) {
  return find_bad(scales, ZeroScale::kAllowed);
}

}  // namespace fathom
