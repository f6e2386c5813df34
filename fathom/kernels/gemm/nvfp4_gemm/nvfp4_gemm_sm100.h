// The native products of NVFP4 on Blackwell: Args of Nvfp4Gemm or Nvfp4GroupGemm. Compiled only
// where FATHOM_CUDA_ARCHS has 100a; no such GPU has run them.
#pragma once

#include "fathom/kernels/core/exec.h"

namespace fathom {

/// The reference's call: x and w in NVFP4 with swizzled scales, alphas, no global scale of w, y
/// bf16.
template <class Args>
bool fits_nvfp4_sm100(const Args& a);
template <class Args>
int64_t nvfp4_sm100_workspace(const Args& a, const Exec& ex);
template <class Args>
Status run_nvfp4_sm100(Exec& ex, const Args& a);

}  // namespace fathom
