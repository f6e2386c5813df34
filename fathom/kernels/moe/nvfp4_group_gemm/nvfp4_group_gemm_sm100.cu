// Block-scaled tensor cores of Blackwell through a CUTLASS collective for groups, whose shapes and
// addresses a small kernel finds from the offsets. Compiled, never run.
#include "cutlass/cutlass.h"
// clang-format off
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
// clang-format on

#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/gemm/nvfp4_gemm/native_nvfp4_sm100.cuh"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm_sm100.h"

namespace fathom {
namespace {

using sm100::cutlass_status;
using sm100::Element;
using sm100::Out;
using sm100::takes_native_nvfp4;

using Args = Nvfp4GroupGemm::Args;
using Code = typename Element::DataType;
using Scale = typename Element::ScaleFactorType;
using Tile = cute::Shape<cute::_128, cute::_128, cute::_256>;
using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
using Problem = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm100,
    cutlass::arch::OpClassTensorOp,
    Tile,
    Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto,
    float,
    float,
    void,
    cutlass::layout::RowMajor*,
    8,
    Out,
    cutlass::layout::RowMajor*,
    8,
    cutlass::epilogue::PtrArrayTmaWarpSpecialized1Sm>::CollectiveOp;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm100,
    cutlass::arch::OpClassBlockScaledTensorOp,
    Element,
    cutlass::layout::RowMajor*,
    32,
    Element,
    cutlass::layout::ColumnMajor*,
    32,
    float,
    Tile,
    Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecialized1SmNvf4Sm100>::CollectiveOp;

using Kernel = cutlass::gemm::kernel::GemmUniversal<Problem, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
using Scales = typename Mainloop::Sm1xxBlkScaledConfig;
using Stride = cute::Stride<int64_t, cute::_1, cute::_0>;
using XScaleLayout = typename Mainloop::InternalLayoutSFA;
using WScaleLayout = typename Mainloop::InternalLayoutSFB;

/// What the collective wants to know of every group, in memory of the GPU.
struct Groups {
  typename Problem::UnderlyingProblemShape* shapes;
  const Code** x;
  const Code** w;
  const Scale** x_scales;
  const Scale** w_scales;
  Out** y;
  const float** alphas;
  typename Kernel::InternalStrideA* x_strides;
  typename Kernel::InternalStrideB* w_strides;
  typename Kernel::InternalStrideD* y_strides;
  XScaleLayout* x_scale_layouts;
  WScaleLayout* w_scale_layouts;
  int64_t bytes = 0;

  Groups(int64_t count, void* memory) {
    auto* at = static_cast<std::byte*>(memory);
    const auto take = [&]<class T>(T*& pointer) {
      pointer = reinterpret_cast<T*>(at + bytes);
      bytes += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    };
    take(shapes);
    take(x);
    take(w);
    take(x_scales);
    take(w_scales);
    take(y);
    take(alphas);
    take(x_strides);
    take(w_strides);
    take(y_strides);
    take(x_scale_layouts);
    take(w_scale_layouts);
  }
};

/// The operands of a call as the small kernel reads them; strides in bytes.
struct GroupCall {
  const uint8_t* x;
  int64_t x_row;  ///< elements
  const uint8_t* x_scales;
  const int32_t* scale_offsets;
  const uint8_t* w;
  const uint8_t* w_scales;
  int64_t w_scale_bytes;
  Out* y;
  int64_t y_row;  ///< elements
  const float* alphas;
  const int32_t* offsets;
  int E;
  int N;
  int K;
};

__global__ void describe_groups(GroupCall c, Groups groups) {
  cuda::wait_for_previous();
  const int e = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (e >= c.E) return;
  const int first = c.offsets[e];
  const int rows = c.offsets[e + 1] - first;
  const int64_t padded_columns = (c.K / 16 + 3) / 4 * 4;
  groups.shapes[e] = cute::make_shape(rows, c.N, c.K);
  groups.x[e] = reinterpret_cast<const Code*>(c.x + first * c.x_row / 2);
  groups.w[e] = reinterpret_cast<const Code*>(c.w + int64_t{e} * c.N * c.K / 2);
  groups.x_scales[e] =
      reinterpret_cast<const Scale*>(c.x_scales + c.scale_offsets[e] * padded_columns);
  groups.w_scales[e] = reinterpret_cast<const Scale*>(c.w_scales + e * c.w_scale_bytes);
  groups.y[e] = c.y + first * c.y_row;
  groups.alphas[e] = c.alphas + e;
  groups.x_strides[e] = cute::make_stride(c.x_row, cute::_1{}, cute::_0{});
  groups.w_strides[e] = cute::make_stride(int64_t{c.K}, cute::_1{}, cute::_0{});
  groups.y_strides[e] = cute::make_stride(c.y_row, cute::_1{}, cute::_0{});
  groups.x_scale_layouts[e] = Scales::tile_atom_to_shape_SFA(cute::make_shape(rows, c.N, c.K, 1));
  groups.w_scale_layouts[e] = Scales::tile_atom_to_shape_SFB(cute::make_shape(rows, c.N, c.K, 1));
}

typename Gemm::Arguments arguments_of(const Args& a, const Groups& g, int device, int num_sms) {
  const auto count = static_cast<int>(a.w.values.dim(0));
  typename Gemm::Arguments args{};
  args.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  args.problem_shape = {count, g.shapes, nullptr};
  args.mainloop.ptr_A = g.x;
  args.mainloop.dA = g.x_strides;
  args.mainloop.ptr_B = g.w;
  args.mainloop.dB = g.w_strides;
  args.mainloop.ptr_SFA = g.x_scales;
  args.mainloop.layout_SFA = g.x_scale_layouts;
  args.mainloop.ptr_SFB = g.w_scales;
  args.mainloop.layout_SFB = g.w_scale_layouts;
  args.epilogue.thread.alpha = 0.0f;
  args.epilogue.thread.alpha_ptr_array = g.alphas;
  args.epilogue.thread.dAlpha = {cute::_0{}, cute::_0{}, 1};
  args.epilogue.thread.beta = 0.0f;
  args.epilogue.ptr_D = g.y;
  args.epilogue.dD = g.y_strides;
  args.hw_info.device_id = device;
  args.hw_info.sm_count = num_sms;
  return args;
}

}  // namespace

bool fits_nvfp4_group_gemm_sm100(const Args& a) {
  return a.alphas.present() && takes_native_nvfp4(a);
}

int64_t nvfp4_group_gemm_sm100_workspace(const Args& a, const Exec& ex) {
  const Groups groups(a.w.values.dim(0), nullptr);
  const int device = ex.device == nullptr ? 0 : ex.device->ordinal;
  const int num_sms = ex.device == nullptr ? 0 : ex.device->num_sms;
  return groups.bytes +
         static_cast<int64_t>(Gemm::get_workspace_size(arguments_of(a, groups, device, num_sms)));
}

Status run_nvfp4_group_gemm_sm100(Exec& ex, const Args& a) {
  const Groups groups(a.w.values.dim(0), ex.workspace);
  const int64_t k = a.w.cols();
  const GroupCall call{.x = a.x.as<const uint8_t>(),
                       .x_row = a.x.stride(0),
                       .x_scales = a.x_scales.as<const uint8_t>(),
                       .scale_offsets = a.scale_offsets.as<const int32_t>(),
                       .w = a.w.values.as<const uint8_t>(),
                       .w_scales = a.w.scales.as<const uint8_t>(),
                       .w_scale_bytes = swizzled_128x4_bytes(a.w.rows(), k / 16),
                       .y = static_cast<Out*>(a.y.data),
                       .y_row = a.y.stride(0),
                       .alphas = a.alphas.as<const float>(),
                       .offsets = a.offsets.as<const int32_t>(),
                       .E = static_cast<int>(a.w.values.dim(0)),
                       .N = static_cast<int>(a.w.rows()),
                       .K = static_cast<int>(k)};
  FATHOM_TRY(launch_kernel(ex, describe_groups, {.blocks = (call.E + 127) / 128, .threads = 128},
                           call, groups));
  const auto args = arguments_of(a, groups, ex.device->ordinal, ex.device->num_sms);
  Gemm gemm;
  FATHOM_TRY(cutlass_status(
      gemm.initialize(args, static_cast<std::byte*>(ex.workspace) + groups.bytes, cuda_stream(ex)),
      "preparing nvfp4_group_gemm"));
  return cutlass_status(gemm.run(cuda_stream(ex)), "running nvfp4_group_gemm");
}

}  // namespace fathom
