#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/mxfp8_gemm/mxfp8_gemm.h"

namespace fathom {

constinit const VariantTable<Mxfp8Gemm> mxfp8_gemm_cpu =
    product_variants<Mxfp8Gemm, mxfp8_products_amx, mxfp8_products_avx512, mxfp8_products_avx2>();

}  // namespace fathom
