#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/kernels/gemm/run_products.h"

namespace fathom {

constinit const VariantTable<Nvfp4Gemm> nvfp4_gemm_cpu =
    product_variants<Nvfp4Gemm, nvfp4_products_avx512, nvfp4_products_avx2>();

}  // namespace fathom
