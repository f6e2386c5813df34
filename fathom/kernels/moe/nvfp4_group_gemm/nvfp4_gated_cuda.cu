#include "fathom/kernels/cuda/products/persistent/persistent_products.cuh"
#include "fathom/kernels/cuda/products/run_tiles.cuh"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_products.cuh"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_gated.cuh"

namespace fathom::cuda {

Status run_gated_nvfp4_tiles(Exec& ex, const ProductCall& c) {
  return run_tiles<Gated<TileNvfp4<2>>>(ex, c);
}

Status run_gated_nvfp4_split_k(Exec& ex, const ProductCall& c) {
  return run_split_k<GatedSplitKNvfp4>(ex, c);
}

Status run_gated_nvfp4_persistent(Exec& ex, const ProductCall& c) {
  return run_persistent<Nvfp4Codec, true>(ex, c);
}

}  // namespace fathom::cuda
