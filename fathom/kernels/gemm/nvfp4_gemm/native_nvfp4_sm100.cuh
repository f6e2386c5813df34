// What the native NVFP4 products of Blackwell have in common, through CUTLASS: element types, what
// they take, and their errors. Compiled, never run.
#pragma once

#include "cutlass/cutlass.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"

namespace fathom::sm100 {

using Element = cutlass::nv_float4_t<cutlass::float_e2m1_t>;
using Out = cutlass::bfloat16_t;

/// Codes of x and w row-major with swizzled scales, no global scale of w, y bf16, at least one row;
/// lengths and addresses in multiples that the copy engine needs.
template <class Args>
bool takes_native_nvfp4(const Args& a) {
  const bool packed = a.w.layout == WeightLayout::kRowMajor && !a.w.global.present();
  const bool swizzled = a.x_scale_layout == BlockScaleLayout::kSwizzled128x4 &&
                        a.w_scale_layout == BlockScaleLayout::kSwizzled128x4;
  const auto aligned = [](const View& v) { return reinterpret_cast<uintptr_t>(v.data) % 16 == 0; };
  return a.x.format == Format::kNvfp4 && packed && swizzled && a.y.format == Format::kBf16 &&
         a.x.dim(0) > 0 && a.w.cols() % 32 == 0 && a.w.rows() % 8 == 0 && a.x.stride(0) % 32 == 0 &&
         a.y.stride(0) % 8 == 0 && aligned(a.x) && aligned(a.w.values) && aligned(a.y);
}

inline Status cutlass_status(cutlass::Status status, const char* what) {
  if (status == cutlass::Status::kSuccess) return {};
  return internal_error(str_cat(what, ": CUTLASS says ", cutlassGetStatusString(status)));
}

}  // namespace fathom::sm100
