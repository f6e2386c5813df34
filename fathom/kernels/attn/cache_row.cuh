// Rows of cache_row.h as kernels of a GPU write them: a block has the channels of a row in shared
// memory, and its warps share out the groups. The bits are those of store_cache_row.
#pragma once

#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/attn/cache_row.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/quant/power_of_two_scale.cuh"

namespace fathom::cuda {

/// A field [pages, rows, width]; strides in bytes.
struct CacheField {
  std::byte* data = nullptr;
  int64_t page_stride = 0;
  int64_t row_stride = 0;

  template <class T>
  __device__ T* row(const RowOfGroup& at) const {
    return reinterpret_cast<T*>(data + at.group * page_stride + at.row * row_stride);
  }
};

/// The rows of checked fields. The scale of e4m3 is a power of two (CacheScale::kPowerOfTwo).
struct StoredRows {
  CacheField values, rope, scales;
  int64_t num_slots = 0;
  int64_t page_rows = 1;
  CacheRowFormat format = CacheRowFormat::kBf16;
  bool f32_scales = false;
  int num_values = 0;  ///< channels in `values`
  int num_rope = 0;    ///< channels in `rope`, behind them
  int group = 0;       ///< channels of a scale

  /// False for -1, and for slots that do not exist, which the host cannot see.
  __device__ bool has(int64_t slot) const { return slot >= 0 && slot < num_slots; }
};

inline CacheField cache_field(const View& v) {
  if (!v.present()) return {};
  const int64_t element = element_bytes(v.format);
  return {v.as<std::byte>(), v.stride(0) * element, v.stride(1) * element};
}

inline StoredRows stored_rows(const CacheFields& fields) {
  const CodedRows rows = cache_rows(fields);
  return {.values = cache_field(fields.values),
          .rope = cache_field(fields.rope),
          .scales = cache_field(fields.scales),
          .num_slots = fields.values.dim(0) * fields.values.dim(1),
          .page_rows = fields.values.dim(1),
          .format = rows.format,
          .f32_scales = fields.scales.format == Format::kF32,
          .num_values = static_cast<int>(rows.num_values),
          .num_rope = static_cast<int>(rows.num_rope),
          .group = static_cast<int>(rows.group)};
}

template <class T>
__device__ __forceinline__ void store_channels(const float* x, int count, T* to) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    store(to + i, x[i]);
}

/// A warp a group.
__device__ __forceinline__ void store_fp8_groups(const StoredRows& rows,
                                                 const RowOfGroup& at,
                                                 const float* x) {
  const int num_groups = rows.num_values / rows.group;
  const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll 1
  for (int g = warp_id(); g < num_groups; g += warps) {
    const float* values = x + g * rows.group;
    E4m3* codes = rows.values.row<E4m3>(at) + g * rows.group;
    float amax = 0.0f;
#pragma unroll 2
    for (int i = lane_id(); i < rows.group; i += 32)
      amax = fmaxf(amax, fabsf(rounded<Bf16>(values[i])));
    const auto scale = PowerOfTwo::of_e4m3(combine_lanes(amax, Max()));
    const float inverse = scale.inverse();
#pragma unroll 2
    for (int i = lane_id(); i < rows.group; i += 32)
      store(codes + i, rounded<Bf16>(values[i]) * inverse);
    if (lane_id() != 0) continue;
    if (rows.f32_scales) {
      scale.store(rows.scales.row<float>(at) + g);
    } else {
      scale.store(rows.scales.row<Ue8m0>(at) + g);
    }
  }
}

/// What codes are made by: a number that values are multiplied with, and the byte of the scale.
struct Fp4Scale {
  float factor;
  uint8_t byte;
};

/// nvfp4_quantize_activations without a global scale.
__device__ __forceinline__ Fp4Scale nvfp4_scale(float amax) {
  E4m3 code;
  store(&code, amax * (1.0f / kE2m1Max));
  const float scale = load(&code);
  return {scale == 0.0f ? 0.0f : __frcp_rn(scale), code.bits};
}

__device__ __forceinline__ Fp4Scale mxfp4_scale(float amax) {
  const auto scale = PowerOfTwo::of_e2m1(amax);
  return {scale.inverse(), scale.byte.bits};
}

/// A pair of channels, which share a byte, a lane: a warp has 64 channels, kGroup of a scale.
template <int kGroup, class ScaleOf>
__device__ __forceinline__ void store_fp4_groups(const StoredRows& rows,
                                                 const RowOfGroup& at,
                                                 const float* x,
                                                 const ScaleOf& scale_of) {
  constexpr int kLanes = kGroup / 2;
  uint8_t* codes = rows.values.row<uint8_t>(at);
  uint8_t* scales = rows.scales.row<uint8_t>(at);
  const int step = 2 * static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int first = 64 * warp_id(); first < rows.num_values; first += step) {
    const int channel = first + 2 * lane_id();
    const bool exists = channel < rows.num_values;
    const float even = exists ? rounded<Bf16>(x[channel]) : 0.0f;
    const float odd = exists ? rounded<Bf16>(x[channel + 1]) : 0.0f;
    const Fp4Scale scale = scale_of(combine_lanes<kLanes>(fmaxf(fabsf(even), fabsf(odd)), Max()));
    // In this order NaN gives 6, as formats/minifloat.h says.
    const auto code = [&](float value) {
      return e2m1_code(fmaxf(fminf(value * scale.factor, kE2m1Max), -kE2m1Max));
    };
    if (!exists) continue;
    codes[channel / 2] = static_cast<uint8_t>(code(even) | code(odd) << 4);
    if (lane_id() % kLanes == 0) scales[channel / kGroup] = scale.byte;
  }
}

/// Writes the channels x to the row of a slot that exists. Called by all threads of the block, who
/// see x.
__device__ inline void store_cache_row(const StoredRows& rows, int64_t slot, const float* x) {
  const RowOfGroup at(slot, rows.page_rows);
  switch (rows.format) {
    case CacheRowFormat::kBf16:
      return store_channels(x, rows.num_values, rows.values.row<Bf16>(at));
    case CacheRowFormat::kF32:
      return store_channels(x, rows.num_values, rows.values.row<float>(at));
    case CacheRowFormat::kFp8:
      store_fp8_groups(rows, at, x);
      break;
    case CacheRowFormat::kNvfp4:
      store_fp4_groups<kNvfp4Block>(rows, at, x, [](float amax) { return nvfp4_scale(amax); });
      break;
    case CacheRowFormat::kMxfp4:
      store_fp4_groups<kMxfp4Block>(rows, at, x, [](float amax) { return mxfp4_scale(amax); });
      break;
  }
  if (rows.num_rope > 0)
    store_channels(x + rows.num_values, rows.num_rope, rows.rope.row<Bf16>(at));
}

}  // namespace fathom::cuda
