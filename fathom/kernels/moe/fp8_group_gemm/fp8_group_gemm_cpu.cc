#include "fathom/kernels/gemm/run_products.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"

namespace fathom {

constinit const VariantTable<Fp8GroupGemm> fp8_group_gemm_cpu =
    product_variants<Fp8GroupGemm, fp8_products_avx512, fp8_products_avx2>();

}  // namespace fathom
