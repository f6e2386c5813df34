// The products of FP8 block weights, of one matrix or of experts: how they are called, and which
// variants take them.
#pragma once

#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/block_per_tile.cuh"
#include "fathom/kernels/cuda/products/persistent/persistent_products.cuh"
#include "fathom/kernels/cuda/products/run_tiles.cuh"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_products.cuh"

namespace fathom::cuda::fp8_blocks {

template <class Args>
ProductCall product(const Args& a) {
  ProductCall c = product_of(a);
  if (a.x_scales.present()) c.scale_x_by(a.x_scales);
  return c;
}

template <class Args>
bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && loads_in_vectors(a, 16);
}

/// Tensor cores add E4M3 products with about 14 bits: enough for outputs of two bytes.
template <class Args>
bool fills_fp8_tiles(const Args& a) {
  return a.x.format == Format::kFp8Group && has_rows(a) && a.y.format != Format::kF32 &&
         takes_tiles<TileFp8Pair<true>>(product(a), 1);
}

template <class Args>
bool is_split_k(const Args& a) {
  return is_bf16(a) && takes_split_k<SplitKFp8>(product(a));
}

template <class Args>
Status run_warp_split_k(Exec& ex, const Args& a) {
  return run_split_k<SplitKFp8>(ex, product(a));
}

template <class Args>
Status run_persistent_blocks(Exec& ex, const Args& a) {
  return run_persistent<Fp8Codec<__NV_E4M3, true>>(ex, product(a));
}

template <class Args>
Status run_in_tiles(Exec& ex, const Args& a) {
  return run_tiles<TileFp8>(ex, product(a));
}

template <class Args>
Status run_fp8_tiles(Exec& ex, const Args& a) {
  return run_tiles<TileFp8Pair<true>>(ex, product(a));
}

template <class Args>
Status run_blocks_per_tile(Exec& ex, const Args& a) {
  return run_block_per_tile<Fp8Codec<__NV_E4M3, true>>(ex, product(a));
}

template <class Args>
Status run_any_layout(Exec& ex, const Args& a) {
  return run_any(ex, any_product_of(product(a), Format::kE4m3));
}

}  // namespace fathom::cuda::fp8_blocks
