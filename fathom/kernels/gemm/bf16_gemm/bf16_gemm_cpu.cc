#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/bf16_gemm/bf16_gemm.h"

namespace fathom {

constinit const VariantTable<Bf16Gemm> bf16_gemm_cpu = bf16_product_variants<Bf16Gemm>();

constinit const VariantTable<Bf16Bmm> bf16_bmm_cpu = bf16_product_variants<Bf16Bmm>();

}  // namespace fathom
