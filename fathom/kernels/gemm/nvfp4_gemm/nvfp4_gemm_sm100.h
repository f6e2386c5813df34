// The native product of NVFP4 matrices on Blackwell. Compiled only where FATHOM_CUDA_ARCHS has
// 100a; no such GPU has run it.
#pragma once

#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"

namespace fathom {

/// The reference's call: x and w in NVFP4 with swizzled scales, alpha, no global scale of w, y
/// bf16.
bool fits_nvfp4_gemm_sm100(const Nvfp4Gemm::Args& a);
int64_t nvfp4_gemm_sm100_workspace(const Nvfp4Gemm::Args& a, const Exec& ex);
Status run_nvfp4_gemm_sm100(Exec& ex, const Nvfp4Gemm::Args& a);

}  // namespace fathom
