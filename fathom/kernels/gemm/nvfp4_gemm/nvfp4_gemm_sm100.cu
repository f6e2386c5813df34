// Block-scaled tensor cores of Blackwell through a CUTLASS collective: codes and scales go in as
// they are. Compiled, never run.
#include "fathom/kernels/cuda/products/native/grouped_sm100.cuh"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm_sm100.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {
namespace {

using Element = cutlass::nv_float4_t<cutlass::float_e2m1_t>;
using Form = sm100::BlockScaledForm<
    sm100::GroupMainloop<cutlass::arch::OpClassBlockScaledTensorOp,
                         sm100::Operand<Element, cutlass::layout::RowMajor*, 32>,
                         sm100::Operand<Element, cutlass::layout::ColumnMajor*, 32>,
                         cute::Shape<cute::_128, cute::_128, cute::_256>,
                         cutlass::gemm::KernelPtrArrayTmaWarpSpecialized1SmNvf4Sm100>,
    16>;
static_assert(Form::lie_swizzled());

template <class Args>
sm100::GroupCall call_of(const Args& a) {
  const int64_t scales = a.w.cols() / 16;
  sm100::GroupCall call{.c = cuda::product_of(a),
                        .x_scales = a.x_scales.data,
                        .x_scale_row = align_up<int64_t>(scales, kSwizzleColumns),
                        .w_scales = a.w.scales.data,
                        .w_scale_bytes = swizzled_128x4_bytes(a.w.rows(), scales)};
  if constexpr (requires { a.alphas; }) {
    call.c.matrix_factors = a.alphas.template as<const float>();
    call.scale_offsets = a.scale_offsets.template as<const int32_t>();
  } else {
    call.c.matrix_factors = a.alpha.template as<const float>();
  }
  return call;
}

}  // namespace

/// Lengths and addresses in multiples that the copy engine needs, too.
template <class Args>
bool fits_nvfp4_sm100(const Args& a) {
  const bool packed = a.w.layout == WeightLayout::kRowMajor && !a.w.global.present();
  const bool swizzled = a.x_scale_layout == BlockScaleLayout::kSwizzled128x4 &&
                        a.w_scale_layout == BlockScaleLayout::kSwizzled128x4;
  const auto aligned = [](const View& v) { return reinterpret_cast<uintptr_t>(v.data) % 16 == 0; };
  return a.x.format == Format::kNvfp4 && packed && swizzled && a.y.format == Format::kBf16 &&
         a.x.dim(0) > 0 && a.w.cols() % 32 == 0 && a.w.rows() % 8 == 0 && a.x.stride(0) % 32 == 0 &&
         a.y.stride(0) % 8 == 0 && aligned(a.x) && aligned(a.w.values) && aligned(a.y);
}

template <class Args>
int64_t nvfp4_sm100_workspace(const Args& a, const Exec& ex) {
  return sm100::groups_workspace<Form>(call_of(a).c, {nullptr}, ex);
}

template <class Args>
Status run_nvfp4_sm100(Exec& ex, const Args& a) {
  return sm100::run_groups<Form>(ex, call_of(a), {ex.workspace});
}

template bool fits_nvfp4_sm100(const Nvfp4Gemm::Args& a);
template int64_t nvfp4_sm100_workspace(const Nvfp4Gemm::Args& a, const Exec& ex);
template Status run_nvfp4_sm100(Exec& ex, const Nvfp4Gemm::Args& a);
template bool fits_nvfp4_sm100(const Nvfp4GroupGemm::Args& a);
template int64_t nvfp4_sm100_workspace(const Nvfp4GroupGemm::Args& a, const Exec& ex);
template Status run_nvfp4_sm100(Exec& ex, const Nvfp4GroupGemm::Args& a);

}  // namespace fathom
