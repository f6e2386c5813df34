#include "fathom/kernels/gemm/product_cases.h"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"

namespace fathom {

void add_skinny_gemm_cases(CaseList& list) {
  add_small_product_cases<LatentDownGemm>(list, Format::kBf16, 16, {Format::kBf16, Format::kF32});
  add_small_product_cases<RouterGemm>(list, Format::kBf16, 16, {Format::kF32});
  for (int64_t t : {1, 8, 16}) {
    add_product_case<LatentDownGemm>(
        list, {.t = t, .n = 2112, .k = 7168, .op = "fused_qkv_a_proj_with_mqa"});
    add_product_case<RouterGemm>(list,
                                 {.t = t, .n = 256, .k = 7168, .y = Format::kF32, .op = "r1_gate"});
    add_product_case<RouterGemm>(
        list, {.t = t, .n = 64, .k = 2048, .y = Format::kF32, .op = "v2lite_gate"});
  }
}

}  // namespace fathom
