#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_group_gemm.h"

namespace fathom {

constinit const VariantTable<Bf16GroupGemm> bf16_group_gemm_cpu =
    product_variants<Bf16GroupGemm, bf16_products_amx, bf16_products_avx512, bf16_products_avx2>();

}  // namespace fathom
