#include "fathom/kernels/gemm/product_cases.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"

namespace fathom {

void add_fp8_group_gemm_cases(CaseList& list) {
  add_small_grouped_cases<Fp8GroupGemm>(list, Format::kFp8Block);
  add_expert_cases<Fp8GroupGemm>(list, Format::kFp8Block);
}

}  // namespace fathom
