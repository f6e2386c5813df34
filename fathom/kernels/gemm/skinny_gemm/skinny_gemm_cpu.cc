#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"

namespace fathom {

constinit const VariantTable<LatentDownGemm> latent_down_gemm_cpu =
    bf16_product_variants<LatentDownGemm>();

constinit const VariantTable<RouterGemm> router_gemm_cpu = bf16_product_variants<RouterGemm>();

}  // namespace fathom
