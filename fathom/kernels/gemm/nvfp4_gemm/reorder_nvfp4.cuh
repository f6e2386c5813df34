// NVFP4 operands as a call may bring them (codes of x with scales, rows of w as in a checkpoint,
// swizzled scales) made into those that products of many and of few rows read: x in bf16, exactly,
// and w in layout kPairs with linear scales. A pass over the weights that a loader saves
// (WeightLayout::kPairs): three times the traffic of the product alone.
#pragma once

#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/pair_layout.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/product.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"

namespace fathom::cuda {

/// Rows of codes and their scales, one E4M3 for sixteen.
struct Nvfp4Source {
  const uint8_t* codes = nullptr;
  int64_t code_row = 0;  ///< bytes
  const uint8_t* scales = nullptr;
  int64_t scale_row = 0;     ///< of linear scales
  bool swizzled = false;     ///< 128x4, each matrix on its own
  int64_t scale_matrix = 0;  ///< bytes, of swizzled scales

  __device__ uint8_t
  scale(int matrix, int64_t row_of_matrix, int64_t row, int block, int blocks) const {
    if (!swizzled) return scales[row * scale_row + block];
    return scales[matrix * scale_matrix + swizzled_128x4_offset(row_of_matrix, block, blocks)];
  }
};

/// x[r, 16 b ..] = code * scale, a thread a block. With first rows of scales of experts, a row's
/// scales begin at those of its expert.
static __global__ void __launch_bounds__(kFlatThreads) decode_nvfp4_rows(
    Nvfp4Source from, ProductCall c, const int32_t* scale_offsets, FlatItems items, Bf16* to) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const auto blocks = static_cast<int>(items.per_row.divisor);
  const int64_t r = at.row;
  const int b = at.item;
  int64_t scale_row = r;
  if (c.offsets != nullptr) {
    const int e = expert_of_row(c, static_cast<int>(r));
    if (e < 0) return;
    if (scale_offsets != nullptr) scale_row = scale_offsets[e] + r - c.offsets[e];
  }
  const float scale = to_float(E4m3{from.scale(0, scale_row, scale_row, b, blocks)});
  const uint8_t* codes = from.codes + r * from.code_row + b * 8;
  uint32_t words[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t byte = codes[j];
    words[j] = pair_of_floats(to_float(E2m1{static_cast<uint8_t>(byte & 15u)}) * scale,
                              to_float(E2m1{static_cast<uint8_t>(byte >> 4)}) * scale);
  }
  auto* out = reinterpret_cast<uint4*>(to + (r * blocks + b) * 16);
  out[0] = {words[0], words[1], words[2], words[3]};
  out[1] = {words[4], words[5], words[6], words[7]};
}

/// Codes of w in pairs and its scales linear, a thread 32 codes. Experts without rows are left out.
static __global__ void __launch_bounds__(kFlatThreads) pair_nvfp4_rows(
    Nvfp4Source from, ProductCall c, FlatItems items, uint8_t* codes, uint8_t* scales) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const auto groups = static_cast<int>(items.per_row.divisor);
  const int64_t row = at.row;
  const int group = at.item;
  const auto e = static_cast<int>(row / c.N);
  if (c.offsets != nullptr && c.offsets[e + 1] <= c.offsets[e]) return;
  const uint4 w = *reinterpret_cast<const uint4*>(from.codes + row * from.code_row + group * 16);
  uint4 out = w;
  if (!c.in_pairs) {
    // Byte j of word i becomes byte i of word j.
    const uint32_t xy_low = __byte_perm(w.x, w.y, 0x5140);
    const uint32_t xy_high = __byte_perm(w.x, w.y, 0x7362);
    const uint32_t zw_low = __byte_perm(w.z, w.w, 0x5140);
    const uint32_t zw_high = __byte_perm(w.z, w.w, 0x7362);
    out = {paired_word(__byte_perm(xy_low, zw_low, 0x5410)),
           paired_word(__byte_perm(xy_low, zw_low, 0x7632)),
           paired_word(__byte_perm(xy_high, zw_high, 0x5410)),
           paired_word(__byte_perm(xy_high, zw_high, 0x7632))};
  }
  *reinterpret_cast<uint4*>(codes + (row * groups + group) * 16) = out;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    scales[row * groups * 2 + group * 2 + j] =
        from.scale(e, row - int64_t{e} * c.N, row, group * 2 + j, groups * 2);
  }
}

/// Parts of the workspace of a reordered call.
struct Nvfp4Copies {
  int64_t x = 0;  ///< bytes; 0: x is bf16 already
  int64_t codes = 0;
  int64_t scales = 0;  ///< 0: w lies in pairs with linear scales already

  int64_t bytes() const { return x + codes + scales; }
};

/// Fits what reorder() takes: K a multiple of 128, codes of w on sixteen bytes.
template <class Args>
bool reorders(const Args& a) {
  const bool x_fits =
      a.x.format == Format::kNvfp4 || (a.x.format == Format::kBf16 && takes_vectors(a.x));
  return x_fits && has_rows(a) && a.w.format() == Format::kNvfp4 && a.w.cols() % 128 == 0 &&
         a.w.cols() > 0 && a.w.rows() > 0 && reinterpret_cast<uintptr_t>(a.w.values.data) % 16 == 0;
}

template <class Args>
Nvfp4Copies nvfp4_copies(const Args& a) {
  constexpr int64_t kAlign = 256;
  const int64_t matrices = a.w.values.rank == 3 ? a.w.values.dim(0) : 1;
  const int64_t elements = matrices * a.w.rows() * a.w.cols();
  const bool w_ready = a.w.layout == WeightLayout::kPairs &&
                       a.w_scale_layout == BlockScaleLayout::kLinear &&
                       reinterpret_cast<uintptr_t>(a.w.scales.data) % 8 == 0;
  Nvfp4Copies copies;
  if (a.x.format == Format::kNvfp4)
    copies.x = align_up(std::max<int64_t>(1, a.x.dim(0) * a.w.cols() * 2), kAlign);
  if (w_ready) return copies;
  copies.codes = align_up(elements / 2, kAlign);
  copies.scales = align_up(elements / 16, kAlign);
  return copies;
}

/// Makes the copies of a call in its workspace, and the call on them. Experts come with offsets in
/// `c`, and with the first rows of their scales where those of x are swizzled.
template <class Args>
Status reorder(Exec& ex, const Args& a, const int32_t* scale_offsets, ProductCall* c) {
  const Nvfp4Copies copies = nvfp4_copies(a);
  auto* at = static_cast<uint8_t*>(ex.workspace);
  const int64_t k = a.w.cols();
  if (copies.x > 0) {
    const Nvfp4Source from{.codes = a.x.template as<const uint8_t>(),
                           .code_row = a.x.stride(0) / 2,
                           .scales = a.x_scales.template as<const uint8_t>(),
                           .scale_row = a.x_scales.stride(0),
                           .swizzled = a.x_scale_layout != BlockScaleLayout::kLinear};
    const FlatItems items = flat_items(a.x.dim(0), k / 16);
    FATHOM_TRY(launch_kernel(ex, decode_nvfp4_rows, one_item_each(items), from, *c, scale_offsets,
                             items, reinterpret_cast<Bf16*>(at)));
    c->x = at;
    c->x_row = k;
    c->x_format = Format::kBf16;
    at += copies.x;
  }
  if (copies.codes == 0) return {};
  const FlatItems items = flat_items(int64_t{c->matrices} * c->N, k / 32);
  const Nvfp4Source from{.codes = c->w,
                         .code_row = c->w_row,
                         .scales = c->scales,
                         .scale_row = k / 16,
                         .swizzled = a.w_scale_layout != BlockScaleLayout::kLinear,
                         .scale_matrix = swizzled_128x4_bytes(c->N, k / 16)};
  FATHOM_TRY(launch_kernel(ex, pair_nvfp4_rows, one_item_each(items), from, *c, items, at,
                           at + copies.codes));
  c->w = at;
  c->scales = at + copies.codes;
  c->in_pairs = true;
  c->w_is_made = true;
  return {};
}

}  // namespace fathom::cuda
