#include "fathom/kernels/gemm/product_cases.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {

void add_nvfp4_group_gemm_cases(CaseList& list) {
  add_small_grouped_cases<Nvfp4GroupGemm>(list, Format::kNvfp4);
  add_expert_cases<Nvfp4GroupGemm>(list, Format::kNvfp4);
}

}  // namespace fathom
