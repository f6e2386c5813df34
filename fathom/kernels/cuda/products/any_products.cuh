// Products of any format, alignment and layout of scales, a warp an output: what the contracts
// accept and no other variant takes. Not made to be fast.
#pragma once

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/product.cuh"
#include "fathom/kernels/cuda/reduce.cuh"

namespace fathom::cuda {

/// How the scales of a matrix of codes are found.
enum class ScalePlaces : uint8_t {
  kNone,
  kPerBlock,  ///< of [128, 128], row-major
  kPerGroup,  ///< of 16 (nvfp4), 32 (mxfp4) or 128 of a row, any strides
  kSwizzled,  ///< of 16 of a row, 128x4
};

/// A matrix whose elements are read one by one.
struct AnyMatrix {
  const void* values = nullptr;
  Format format = Format::kNone;  ///< of the codes
  int64_t row = 0;                ///< elements from row to row
  const uint8_t* scales = nullptr;
  Format scale_format = Format::kNone;
  ScalePlaces places = ScalePlaces::kNone;
  int64_t scale_row = 0;
  int64_t scale_column = 1;
  int32_t scale_columns = 0;  ///< of a swizzled matrix
  bool in_pairs = false;      ///< nvfp4 in layout kPairs
  bool as_e4m3 = false;       ///< nvfp4, each value rounded to what products in E4M3 take for it

  /// Elements of a row that share a scale of kPerGroup.
  __device__ int group() const {
    if (format == Format::kNvfp4) return kNvfp4Block;
    if (format == Format::kMxfp4) return kMxfp4Block;
    return kBlockK;
  }

  __device__ float scale_at(int64_t at) const {
    if (scale_format == Format::kUe8m0) return to_float(Ue8m0{scales[at]});
    return load_any(scales, scale_format, at);
  }

  /// One code of a word in layout kPairs.
  __device__ static float load_paired(uint32_t word, int pair, int upper) {
    uint32_t pairs[4];
    decode_e2m1(word, pairs);
    const uint32_t both = pair == 0   ? pairs[0]
                          : pair == 1 ? pairs[1]
                          : pair == 2 ? pairs[2]
                                      : pairs[3];
    return __uint_as_float(upper == 0 ? both << 16 : both & 0xFFFF0000u) * 0x1p126f;
  }

  /// Element k of row r, whose scales are those of row `scale_r`: those of experts may begin
  /// elsewhere.
  __device__ __forceinline__ float load(int64_t r, int64_t scale_r, int k) const {
    const float value = load_exact(r, scale_r, k);
    return as_e4m3 ? kNvfp4PerE4m3 * to_float(nvfp4_as_e4m3(value)) : value;
  }

  __device__ __forceinline__ float load_exact(int64_t r, int64_t scale_r, int k) const {
    float value;
    if (in_pairs) {
      const auto* words = static_cast<const uint32_t*>(values) + (r * row + k) / 32 * 4;
      value = load_paired(words[k % 8 / 2], k % 32 / 8, k % 2);
    } else if (is_fp4(format)) {
      const int64_t at = r * row + k;
      const uint32_t byte = static_cast<const uint8_t*>(values)[at / 2];
      value = to_float(E2m1{static_cast<uint8_t>(at % 2 == 0 ? byte & 15u : byte >> 4)});
    } else {
      value = load_any(values, format, r * row + k);
    }
    switch (places) {
      case ScalePlaces::kNone:
        return value;
      case ScalePlaces::kPerBlock:
        return value * scale_at(scale_r / 128 * scale_row + k / 128);
      case ScalePlaces::kPerGroup:
        return value * scale_at(scale_r * scale_row + k / group() * scale_column);
      case ScalePlaces::kSwizzled:
        return value * scale_at(swizzled_128x4_offset(scale_r, k / 16, scale_columns));
    }
    return value;
  }
};

struct AnyProduct {
  ProductCall call;  ///< its strides of y, sizes, factors and offsets
  AnyMatrix x;
  AnyMatrix w;
  int64_t w_elements = 0;  ///< from matrix to matrix
  int64_t w_scale_bytes = 0;
  const int32_t* x_scale_offsets = nullptr;  ///< first scale row of x of each expert
};

inline constexpr int kAnyWarps = 8;

__device__ __forceinline__ int expert_of_row(const ProductCall& c, int row) {
  int e = 0;
  while (e < c.matrices && c.offsets[e + 1] <= row)
    ++e;
  return e < c.matrices && row >= c.offsets[e] ? e : -1;
}

/// Output number `item`: of matrix e, row r of it, column n.
static __global__ void __launch_bounds__(kAnyWarps * 32)
    any_products(AnyProduct p, int64_t num_outputs) {
  let_next_start();
  wait_for_previous();
  const ProductCall& c = p.call;
  const int64_t item = int64_t{blockIdx.x} * kAnyWarps + warp_id();
  if (item >= num_outputs) return;
  const int width = c.width();
  const int64_t n = item % width;
  int64_t r = item / width;
  int e = 0;
  int64_t scale_r = r;
  if (c.offsets != nullptr) {
    e = expert_of_row(c, static_cast<int>(r));
    if (e < 0) return;
    if (p.x_scale_offsets != nullptr) scale_r = p.x_scale_offsets[e] + r - c.offsets[e];
  } else {
    e = static_cast<int>(r / c.T);
    r -= int64_t{e} * c.T;
    scale_r = r;
  }
  AnyMatrix x = p.x;
  x.row = c.x_row;
  AnyMatrix w = p.w;
  w.scales += e * p.w_scale_bytes;
  const int64_t x_at = e * c.x_matrix;
  const auto product = [&](int64_t row) {
    // Whole matrices: the element index grows by e * N rows.
    const int64_t w_row = e * int64_t{c.N} + row;
    float sum = 0.0f;
    for (int k = lane_id(); k < c.K; k += 32) {
      const float a = c.x_matrix == 0 ? x.load(r, scale_r, k)
                                      : load_any(x.values, x.format, x_at + r * c.x_row + k);
      sum = fmaf(a, w.load(w_row, row, k), sum);
    }
    return combine_lanes(sum, Add()) * c.factor(e);
  };
  const float sum = product(n);
  const int64_t at = e * c.y_matrix + c.row_of_y(r) * c.y_row + n;
  if (c.gated) {
    const float up = product(width + n);
    if (lane_id() == 0) store_any(c.y, c.y_format, at, swiglu(sum, up, c.gate_limit));
  } else if (lane_id() == 0) {
    store_any(c.y, c.y_format, at, c.finished_of(e, sum, r, static_cast<int>(n)));
  }
}

/// The plain part of an any-product: x without scales, rows of w with theirs.
inline AnyProduct any_product_of(const ProductCall& c, Format w_format) {
  AnyProduct p;
  p.call = c;
  p.x = {.values = c.x, .format = c.x_format};
  p.w = {.values = c.w, .format = w_format, .row = c.K};
  p.w.in_pairs = c.in_pairs;
  if (c.x_scales != nullptr) {
    p.x.scales = reinterpret_cast<const uint8_t*>(c.x_scales);
    p.x.scale_format = Format::kF32;
    p.x.places = ScalePlaces::kPerGroup;
    p.x.scale_row = c.x_scale_row;
    p.x.scale_column = c.x_scale_block;
  }
  if (c.scales == nullptr) return p;
  p.w.scales = c.scales;
  p.w.scale_format = c.scale_format;
  p.w.places = is_fp4(w_format) ? ScalePlaces::kPerGroup : ScalePlaces::kPerBlock;
  p.w.scale_row = c.scale_row;
  p.w_scale_bytes = c.scale_matrix * (c.scale_format == Format::kF32 ? 4 : 1);
  return p;
}

inline Status run_any(Exec& ex, const AnyProduct& p) {
  const ProductCall& c = p.call;
  const int64_t rows = c.offsets == nullptr ? int64_t{c.T} * c.matrices : c.T;
  const int64_t outputs = rows * c.width();
  return launch_kernel(ex, any_products,
                       {.blocks = (outputs + kAnyWarps - 1) / kAnyWarps, .threads = kAnyWarps * 32},
                       p, outputs);
}

}  // namespace fathom::cuda
