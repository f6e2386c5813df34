#include "fathom/kernels/cuda/products/native/e4m3_products_sm100.cuh"

namespace fathom::sm100 {

// The copy engine makes bytes of codes of four bits, 128 at a time.
constexpr NativeProduct kMxfp4 =
    mx_product<MxForm<cutlass::mx_float4_t<cutlass::float_e2m1_t>, 128>>();

}  // namespace fathom::sm100
