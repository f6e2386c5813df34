#include "fathom/kernels/gemm/run_products.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {

constinit const VariantTable<Nvfp4GroupGemm> nvfp4_group_gemm_cpu =
    product_variants<Nvfp4GroupGemm, nvfp4_products_avx512, nvfp4_products_avx2>();

}  // namespace fathom
