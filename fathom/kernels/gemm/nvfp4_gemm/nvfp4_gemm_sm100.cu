// Block-scaled tensor cores of Blackwell through a CUTLASS collective: codes and scales go in as
// they are. Compiled, never run.
#include "cutlass/cutlass.h"
// clang-format off
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
// clang-format on

#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/gemm/nvfp4_gemm/native_nvfp4_sm100.cuh"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm_sm100.h"

namespace fathom {
namespace {

using sm100::cutlass_status;
using sm100::Element;
using sm100::Out;
using sm100::takes_native_nvfp4;

using Args = Nvfp4Gemm::Args;
using Tile = cute::Shape<cute::_128, cute::_128, cute::_256>;
using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm100,
    cutlass::arch::OpClassTensorOp,
    Tile,
    Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto,
    float,
    float,
    void,
    cutlass::layout::RowMajor,
    8,
    Out,
    cutlass::layout::RowMajor,
    8,
    cutlass::epilogue::TmaWarpSpecialized1Sm>::CollectiveOp;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm100,
    cutlass::arch::OpClassBlockScaledTensorOp,
    Element,
    cutlass::layout::RowMajor,
    32,
    Element,
    cutlass::layout::ColumnMajor,
    32,
    float,
    Tile,
    Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::KernelTmaWarpSpecialized1SmNvf4Sm100>::CollectiveOp;

using Kernel =
    cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, void>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
using Scales = typename Mainloop::Sm1xxBlkScaledConfig;

typename Gemm::Arguments arguments_of(const Args& a, int num_sms) {
  const auto m = static_cast<int>(a.x.dim(0));
  const auto n = static_cast<int>(a.w.rows());
  const auto k = static_cast<int>(a.w.cols());
  const auto shape = cute::make_shape(m, n, k, 1);
  using Code = typename Element::DataType;
  using Scale = typename Element::ScaleFactorType;
  typename Gemm::Arguments args{};
  args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  args.problem_shape = shape;
  args.mainloop.ptr_A = static_cast<const Code*>(a.x.data);
  args.mainloop.dA = cute::make_stride(a.x.stride(0), cute::_1{}, int64_t{0});
  args.mainloop.ptr_B = static_cast<const Code*>(a.w.values.data);
  args.mainloop.dB = cute::make_stride(static_cast<int64_t>(k), cute::_1{}, int64_t{0});
  args.mainloop.ptr_SFA = static_cast<const Scale*>(a.x_scales.data);
  args.mainloop.layout_SFA = Scales::tile_atom_to_shape_SFA(shape);
  args.mainloop.ptr_SFB = static_cast<const Scale*>(a.w.scales.data);
  args.mainloop.layout_SFB = Scales::tile_atom_to_shape_SFB(shape);
  args.epilogue.thread.alpha = 1.0f;
  args.epilogue.thread.alpha_ptr = a.alpha.present() ? a.alpha.as<const float>() : nullptr;
  args.epilogue.thread.beta = 0.0f;
  args.epilogue.ptr_D = static_cast<Out*>(a.y.data);
  args.epilogue.dD = cute::make_stride(a.y.stride(0), cute::_1{}, int64_t{0});
  args.hw_info.sm_count = num_sms;
  return args;
}

}  // namespace

bool fits_nvfp4_gemm_sm100(const Args& a) {
  return takes_native_nvfp4(a);
}

int64_t nvfp4_gemm_sm100_workspace(const Args& a, const Exec& ex) {
  const int num_sms = ex.device == nullptr ? 0 : ex.device->num_sms;
  return static_cast<int64_t>(Gemm::get_workspace_size(arguments_of(a, num_sms)));
}

Status run_nvfp4_gemm_sm100(Exec& ex, const Args& a) {
  const typename Gemm::Arguments args = arguments_of(a, ex.device->num_sms);
  Gemm gemm;
  FATHOM_TRY(
      cutlass_status(gemm.initialize(args, ex.workspace, cuda_stream(ex)), "preparing nvfp4_gemm"));
  return cutlass_status(gemm.run(cuda_stream(ex)), "running nvfp4_gemm");
}

}  // namespace fathom
