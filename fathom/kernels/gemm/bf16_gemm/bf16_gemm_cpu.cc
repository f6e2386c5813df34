#include "fathom/kernels/gemm/bf16_gemm/bf16_gemm.h"
#include "fathom/kernels/gemm/run_products.h"

namespace fathom {

constinit const VariantTable<Bf16Gemm> bf16_gemm_cpu =
    product_variants<Bf16Gemm, bf16_products_avx512, bf16_products_avx2>();

constinit const VariantTable<Bf16Bmm> bf16_bmm_cpu =
    product_variants<Bf16Bmm, bf16_products_avx512, bf16_products_avx2>();

}  // namespace fathom
