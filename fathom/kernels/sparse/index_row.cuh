// The steps of index_row.h on a GPU, with the same bits: rotation, transform and quantisation of
// rows of float32, in two forms.
//
//   lanes   neighbouring lanes of a warp hold a row, element 8 * lane + i in x[i]; D, R and the
//           first rotated channel are multiples of eight (R of sixteen where pairs are halves)
//   warp    a warp works on a row in shared memory; any D and R
//
// All lanes of a warp take part in every function, also those that hold nothing: zeros then.
#pragma once

#include <cmath>
#include <type_traits>

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rotate.cuh"
#include "fathom/kernels/quant/power_of_two_scale.cuh"
#include "fathom/kernels/sparse/hadamard/hadamard_lanes.cuh"
#include "fathom/kernels/sparse/hadamard/hadamard_rows.h"
#include "fathom/kernels/sparse/hadamard/hadamard_stage.cuh"
#include "fathom/kernels/sparse/index_row.h"

namespace fathom::cuda {

/// What a row becomes where it is stored as pairs of e2m1 with a scale for each 32 channels.
struct E2m1Pairs {};

/// IndexSteps as kernels take them; the rounding is their template parameter.
struct RowSteps {
  int D;
  int R;
  int first;  ///< rotated channel
  RopeStyle style;
  bool transforms;
  float scale;  ///< of the transform

  __device__ int num_vectors() const { return D / kVector; }
};

inline RowSteps row_steps(const IndexSteps& s) {
  const auto D = static_cast<int>(s.width);
  const auto R = static_cast<int>(s.rope_dim);
  return {.D = D,
          .R = R,
          .first = s.channels == RopeChannels::kFirst ? 0 : D - R,
          .style = s.style,
          .transforms = s.transform == IndexTransform::kHadamard,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(D)))};
}

/// The widest row that the lanes of a warp hold.
inline constexpr int64_t kWidestLaneRow = int64_t{32} * kVector;

/// Lanes that hold a row: a power of two.
inline int64_t lanes_of_row(int64_t width) {
  return hadamard_width(width) / kVector;
}

/// True if the form of lanes takes such rows.
inline bool fits_lanes(const IndexSteps& s) {
  const int64_t unit = s.style == RopeStyle::kHalfSplit ? 2 * kVector : kVector;
  return s.width % kVector == 0 && s.width <= kWidestLaneRow && s.rope_dim % unit == 0;
}

// ---- rotation ----

/// Rotates and rounds to A. `lane` counts within the row; a row without angles stays as it is.
template <class A>
__device__ __forceinline__ void rotate_lanes(const RowSteps& steps,
                                             const float* table_row,
                                             int lane,
                                             float (&x)[kVector]) {
  if (steps.R == 0) return;
  const int unit = lane - steps.first / kVector;  // among the rotated vectors
  const bool rotates = table_row != nullptr && unit >= 0 && unit < steps.R / kVector;
  if (steps.style == RopeStyle::kInterleaved) {
    if (!rotates) return;
    Angles angles;
    angles.load(table_row, unit, steps.R);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      rotate_pair<float>(x[2 * i], x[2 * i + 1], angles.c[i], angles.s[i]);
      x[2 * i] = rounded<A>(x[2 * i]);
      x[2 * i + 1] = rounded<A>(x[2 * i + 1]);
    }
    return;
  }
  // The other half of a vector's pairs lies in another lane: a c - b s for the first of a pair,
  // b c + a s for the second.
  const int half = steps.R / (2 * kVector);
  const bool is_first = unit < half;
  const int partner = rotates ? lane_id() + (is_first ? half : -half) : lane_id();
  float other[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    other[i] = __shfl_sync(0xFFFFFFFFu, x[i], partner);
  if (!rotates) return;
  const float* angles = table_row + kVector * (is_first ? unit : unit - half);
  float c[kVector];
  float s[kVector];
  load8(angles, c);
  load8(angles + steps.R / 2, s);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float sine = is_first ? -s[i] : s[i];
    x[i] = rounded<A>(__fadd_rn(__fmul_rn(x[i], c[i]), __fmul_rn(other[i], sine)));
  }
}

template <class A>
__device__ __forceinline__ void rotate_in_warp(const RowSteps& steps,
                                               const float* table_row,
                                               float* x) {
  for (int i = lane_id(); i < steps.R / 2; i += 32) {
    float& a = x[steps.first + first_of_pair(i, steps.style)];
    float& b = x[steps.first + second_of_pair(i, steps.R, steps.style)];
    float rotated_a = a;
    float rotated_b = b;
    rotate_pair<float>(rotated_a, rotated_b, table_row[i], table_row[steps.R / 2 + i]);
    a = rounded<A>(rotated_a);
    b = rounded<A>(rotated_b);
  }
  __syncwarp();
}

// ---- transform ----

/// D is a power of two where there is a transform.
template <class A>
__device__ __forceinline__ void transform_row_lanes(const RowSteps& steps, float (&x)[kVector]) {
  if (!steps.transforms) return;
  transform_lanes(x, steps.num_vectors());
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    x[i] = rounded<A>(x[i] * steps.scale);
}

template <class A>
__device__ __forceinline__ void transform_in_warp(const RowSteps& steps, float* x) {
  if (!steps.transforms) return;
  for (int stride = 1; stride < steps.D; stride *= 2) {
    transform_stage(x, steps.D, stride, lane_id(), 32);
    __syncwarp();
  }
  for (int i = lane_id(); i < steps.D; i += 32)
    x[i] = rounded<A>(x[i] * steps.scale);
  __syncwarp();
}

// ---- quantisation ----

/// A quotient whose e2m1 code is that of formats/: NaN has the one of 6, without its sign.
__device__ __forceinline__ float e2m1_quotient(float x) {
  return isnan(x) ? kE2m1Max : limit_size(x, kE2m1Max);
}

__device__ __forceinline__ float largest_of(const float (&x)[kVector]) {
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    amax = fmaxf(amax, fabsf(x[i]));
  return amax;
}

/// Stores a row as Out: float, Bf16, E4m3 or E2m1Pairs. `exists`: this lane has elements of a row
/// that is written. Returns the scale of the row, 1 for all formats but e4m3.
template <class Out>
__device__ __forceinline__ float store_lanes(
    int lane, int lanes, bool exists, float (&x)[kVector], void* row, Ue8m0* group_scales) {
  if constexpr (std::is_same_v<Out, E4m3>) {
    float amax = largest_of(x);
#pragma unroll 1
    for (int offset = 1; offset < lanes; offset *= 2)
      amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, offset));
    const auto scale = PowerOfTwo::of_e4m3(amax);
    const float inverse = scale.inverse();
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      x[i] *= inverse;
    if (exists) store8(static_cast<E4m3*>(row) + kVector * lane, x);
    return scale.value();
  } else if constexpr (std::is_same_v<Out, E2m1Pairs>) {
    constexpr int kGroupLanes = static_cast<int>(kIndexScaleGroup) / kVector;
    const float amax = combine_lanes<kGroupLanes>(largest_of(x), Max());
    const auto scale = PowerOfTwo::of_e2m1(amax);
    const float inverse = scale.inverse();
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      x[i] = e2m1_quotient(x[i] * inverse);
    if (exists) {
      static_cast<uint32_t*>(row)[lane] = e2m1_codes(x);
      if (lane % kGroupLanes == 0) scale.store(group_scales + lane / kGroupLanes);
    }
    return 1.0f;
  } else {
    if (exists) store8(static_cast<Out*>(row) + kVector * lane, x);
    return 1.0f;
  }
}

/// The same of a row in shared memory, by a warp, in a format known at run time.
__device__ inline float store_in_warp(
    const RowSteps& steps, Format format, const float* x, void* row, Ue8m0* group_scales) {
  if (format == Format::kU8) {
    for (int g = 0; g < steps.D / static_cast<int>(kIndexScaleGroup); ++g) {
      const int first = g * static_cast<int>(kIndexScaleGroup);
      const float size = fmaxf(fabsf(x[first + lane_id()]), 0.0f);
      const auto scale = PowerOfTwo::of_e2m1(combine_lanes(size, Max()));
      const float inverse = scale.inverse();
      if (lane_id() == 0) scale.store(group_scales + g);
      if (lane_id() < 16) {
        const float* pair = x + first + 2 * lane_id();
        const uint32_t even = e2m1_code(e2m1_quotient(pair[0] * inverse));
        const uint32_t odd = e2m1_code(e2m1_quotient(pair[1] * inverse));
        static_cast<uint8_t*>(row)[first / 2 + lane_id()] = static_cast<uint8_t>(even | odd << 4);
      }
    }
    return 1.0f;
  }
  float scale = 1.0f;
  float inverse = 1.0f;
  if (format == Format::kE4m3) {
    float amax = 0.0f;
    for (int i = lane_id(); i < steps.D; i += 32)
      amax = fmaxf(amax, fabsf(x[i]));
    const auto of_row = PowerOfTwo::of_e4m3(combine_lanes(amax, Max()));
    scale = of_row.value();
    inverse = of_row.inverse();
  }
  for (int i = lane_id(); i < steps.D; i += 32)
    store_any(row, format, i, x[i] * inverse);
  return scale;
}

}  // namespace fathom::cuda
