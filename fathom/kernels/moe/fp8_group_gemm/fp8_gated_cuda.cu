#include "fathom/kernels/cuda/products/persistent/persistent_products.cuh"
#include "fathom/kernels/cuda/products/run_tiles.cuh"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_products.cuh"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_gated.cuh"

namespace fathom::cuda {

Status run_gated_fp8_weight_tiles(Exec& ex, const ProductCall& c) {
  return run_tiles<Gated<TileFp8>>(ex, c);
}

Status run_gated_fp8_split_k(Exec& ex, const ProductCall& c) {
  return run_split_k<GatedSplitKFp8>(ex, c);
}

Status run_gated_fp8_persistent(Exec& ex, const ProductCall& c) {
  return run_persistent<Fp8Codec<__NV_E4M3, true>, true>(ex, c);
}

}  // namespace fathom::cuda
