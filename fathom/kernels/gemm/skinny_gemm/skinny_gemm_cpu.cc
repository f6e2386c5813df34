#include "fathom/kernels/gemm/run_products.h"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"

namespace fathom {

constinit const VariantTable<LatentDownGemm> latent_down_gemm_cpu =
    product_variants<LatentDownGemm, bf16_products_avx512, bf16_products_avx2>();

constinit const VariantTable<RouterGemm> router_gemm_cpu =
    product_variants<RouterGemm, bf16_products_avx512, bf16_products_avx2>();

}  // namespace fathom
