#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"
#include "fathom/kernels/gemm/run_products.h"

namespace fathom {

constinit const VariantTable<Fp8BlockGemm> fp8_block_gemm_cpu =
    product_variants<Fp8BlockGemm, fp8_products_avx512, fp8_products_avx2>();

}  // namespace fathom
