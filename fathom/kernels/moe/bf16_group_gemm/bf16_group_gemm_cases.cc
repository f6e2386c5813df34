#include "fathom/kernels/gemm/product_cases.h"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_group_gemm.h"

namespace fathom {

void add_bf16_group_gemm_cases(CaseList& list) {
  add_small_grouped_cases<Bf16GroupGemm>(list, Format::kBf16);
  add_expert_cases<Bf16GroupGemm>(list, Format::kBf16);
  list.serve_calls("bf16_group_gemm", add_grouped_call<Bf16GroupGemm>);
}

}  // namespace fathom
