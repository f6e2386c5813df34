#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/moe/mxfp8_group_gemm/mxfp8_group_gemm.h"

namespace fathom {

constinit const VariantTable<Mxfp8GroupGemm> mxfp8_group_gemm_cpu =
    product_variants<Mxfp8GroupGemm,
                     mxfp8_products_amx,
                     mxfp8_products_avx512,
                     mxfp8_products_avx2>();

}  // namespace fathom
