// The native grouped product of NVFP4 matrices on Blackwell. Compiled only where FATHOM_CUDA_ARCHS
// has 100a; no such GPU has run it.
#pragma once

#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {

/// The reference's call: x and w in NVFP4 with swizzled scales, alphas, no global scales of w,
/// bf16.
bool fits_nvfp4_group_gemm_sm100(const Nvfp4GroupGemm::Args& a);
int64_t nvfp4_group_gemm_sm100_workspace(const Nvfp4GroupGemm::Args& a, const Exec& ex);
Status run_nvfp4_group_gemm_sm100(Exec& ex, const Nvfp4GroupGemm::Args& a);

}  // namespace fathom
