// Products of Blackwell through CUTLASS collectives for groups, whose shapes and addresses a small
// kernel finds. Compiled, never run.
#pragma once

// clang-format off
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
// clang-format on

#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/native/split_rows.cuh"

namespace fathom::sm100 {

using Out = cutlass::bfloat16_t;
using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
using Problem = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;

inline Status cutlass_status(cutlass::Status status) {
  if (status == cutlass::Status::kSuccess) return {};
  return internal_error(str_cat("CUTLASS says ", cutlassGetStatusString(status)));
}

template <class Element, class Layout, int kAlignment>
struct Operand {
  using Type = Element;
  using Order = Layout;  ///< or a tuple of it and that of scales
  static constexpr int kElements = kAlignment;
};

template <class Tile>
using GroupEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
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

template <class Op, class X, class W, class Tile, class Schedule>
using GroupMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm100,
    Op,
    typename X::Type,
    typename X::Order,
    X::kElements,
    typename W::Type,
    typename W::Order,
    W::kElements,
    float,
    Tile,
    Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename GroupEpilogue<Tile>::SharedStorage))>,
    Schedule>::CollectiveOp;

template <class Mainloop>
using GroupKernel = cutlass::gemm::kernel::
    GemmUniversal<Problem, Mainloop, GroupEpilogue<typename Mainloop::TileShape>>;

/// What describe_groups reads. Group e is the rows of matrix e, times it.
struct GroupCall {
  ProductCall c;  ///< its matrix_factors, or 1
  const void* x_scales = nullptr;
  int64_t x_scale_row = 0;                 ///< bytes
  const int32_t* scale_offsets = nullptr;  ///< first scale row of each group; null: the form's
  const void* w_scales = nullptr;
  int64_t w_scale_bytes = 0;  ///< from matrix to matrix
  int parts = 1;              ///< of x, K k each: the product has parts * K
};

/// Parts of a workspace, one behind the other.
struct Parts {
  void* memory;
  int64_t bytes = 0;

  void* rest() const { return static_cast<std::byte*>(memory) + bytes; }

  template <class T>
  void take(T*& part, int64_t count) {
    part = static_cast<T*>(rest());
    bytes += align_up<int64_t>(count * static_cast<int64_t>(sizeof(T)), 256);
  }
};

/// What the collective of a form wants to know of every group, in memory of the GPU.
template <class Form>
struct Groups {
  using Kernel = typename Form::Kernel;
  using Mainloop = typename Kernel::CollectiveMainloop;
  using Arguments = typename Mainloop::Arguments;

  typename Problem::UnderlyingProblemShape* shapes;
  decltype(Arguments::ptr_A) x;
  decltype(Arguments::ptr_B) w;
  decltype(Arguments::ptr_SFA) x_scales;
  decltype(Arguments::ptr_SFB) w_scales;
  Out** y;
  const float** alphas;
  typename Kernel::InternalStrideA* x_strides;
  typename Kernel::InternalStrideB* w_strides;
  typename Kernel::InternalStrideD* y_strides;
  typename Mainloop::InternalLayoutSFA* x_scale_layouts;
  typename Mainloop::InternalLayoutSFB* w_scale_layouts;

  Groups(int64_t count, Parts& parts) {
    const auto take = [&](auto&... each) { (parts.take(each, count), ...); };
    take(shapes, x, w, x_scales, w_scales, y, alphas);
    take(x_strides, w_strides, y_strides, x_scale_layouts, w_scale_layouts);
  }
};

template <class T>
__device__ void point(T*& to, const void* base, int64_t bytes) {
  to = reinterpret_cast<T*>(static_cast<const std::byte*>(base) + bytes);
}

template <class Form>
__global__ void describe_groups(GroupCall call, Groups<Form> g) {
  cuda::wait_for_previous();
  const ProductCall& c = call.c;
  const int e = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (e >= c.matrices) return;
  const int64_t first = first_row(c, e);
  const auto [y_first, rows] = cuda::rows_of_matrix(c, e);
  const int64_t scale_row =
      call.scale_offsets != nullptr ? call.scale_offsets[e] : Form::XScales::first_of(first, e);
  constexpr int kBitsOfX = cute::sizeof_bits_v<typename Groups<Form>::Mainloop::ElementA>;
  g.shapes[e] = cute::make_shape(rows, c.N, c.K * call.parts);
  point(g.x[e], c.x, first * c.x_row * kBitsOfX / 8);
  point(g.w[e], c.w, e * c.w_matrix);
  point(g.x_scales[e], call.x_scales, scale_row * call.x_scale_row);
  point(g.w_scales[e], call.w_scales, e * call.w_scale_bytes);
  g.y[e] = static_cast<Out*>(c.y) + e * c.y_matrix + y_first * c.y_row;
  g.alphas[e] = c.matrix_factors + e;
  g.x_strides[e] = cute::make_stride(c.x_row, cute::_1{}, cute::_0{});
  g.w_strides[e] = cute::make_stride(int64_t{c.K}, cute::_1{}, cute::_0{});
  g.y_strides[e] = cute::make_stride(c.y_row, cute::_1{}, cute::_0{});
  g.x_scale_layouts[e] = Form::x_scale_layout(rows, c.N, c.K * call.parts);
  g.w_scale_layouts[e] = Form::w_scale_layout(rows, c.N, c.K, call.parts);
}

template <class Form>
auto arguments_of(const ProductCall& c, const Groups<Form>& g, const Exec& ex) {
  typename cutlass::gemm::device::GemmUniversalAdapter<typename Form::Kernel>::Arguments args{};
  args.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  args.problem_shape = {c.matrices, g.shapes, nullptr};
  args.mainloop.ptr_A = g.x;
  args.mainloop.dA = g.x_strides;
  args.mainloop.ptr_B = g.w;
  args.mainloop.dB = g.w_strides;
  args.mainloop.ptr_SFA = g.x_scales;
  args.mainloop.layout_SFA = g.x_scale_layouts;
  args.mainloop.ptr_SFB = g.w_scales;
  args.mainloop.layout_SFB = g.w_scale_layouts;
  args.epilogue.thread.alpha = 1.0f;
  if (c.matrix_factors != nullptr) {
    args.epilogue.thread.alpha_ptr_array = g.alphas;
    args.epilogue.thread.dAlpha = {cute::_0{}, cute::_0{}, 1};
  }
  args.epilogue.thread.beta = 0.0f;
  args.epilogue.ptr_D = g.y;
  args.epilogue.dD = g.y_strides;
  args.hw_info.device_id = ex.device == nullptr ? 0 : ex.device->ordinal;
  args.hw_info.sm_count = ex.device == nullptr ? 0 : ex.device->num_sms;
  return args;
}

/// Bytes of `parts` and of what run_groups takes behind them.
template <class Form>
int64_t groups_workspace(const ProductCall& c, Parts parts, const Exec& ex) {
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<typename Form::Kernel>;
  const Groups<Form> groups(c.matrices, parts);
  return parts.bytes +
         static_cast<int64_t>(Gemm::get_workspace_size(arguments_of<Form>(c, groups, ex)));
}

template <class Form>
Status run_groups(Exec& ex, const GroupCall& call, Parts parts) {
  const int groups = call.c.matrices;
  const Groups<Form> described(groups, parts);
  FATHOM_TRY(launch_kernel(ex, describe_groups<Form>,
                           {.blocks = (groups + 127) / 128, .threads = 128}, call, described));
  cutlass::gemm::device::GemmUniversalAdapter<typename Form::Kernel> gemm;
  const auto args = arguments_of<Form>(call.c, described, ex);
  FATHOM_TRY(cutlass_status(gemm.initialize(args, parts.rest(), cuda_stream(ex))));
  return cutlass_status(gemm.run(cuda_stream(ex)));
}

/// Scales that the tensor cores multiply, of `kBlock` k: swizzled 128x4.
template <class Mainloop, int kBlock>
struct BlockScaledForm {
  using Kernel = GroupKernel<Mainloop>;
  using Layouts = typename Mainloop::Sm1xxBlkScaledConfig;
  using XScales = MxScales;

  CUTE_HOST_DEVICE static constexpr auto x_scale_layout(int rows, int n, int k) {
    return Layouts::tile_atom_to_shape_SFA(cute::make_shape(rows, n, k, 1));
  }

  CUTE_HOST_DEVICE static constexpr auto w_scale_layout(int rows, int n, int k, int /*parts*/) {
    return Layouts::tile_atom_to_shape_SFB(cute::make_shape(rows, n, k, 1));
  }

  static constexpr bool lie_swizzled() {
    const auto layout = x_scale_layout(256, 1, 8 * kBlock);
    for (int i = 0; i < 256 * 8; ++i) {
      if (layout(i / 8, i % 8 * kBlock, 0) != swizzled_128x4_offset(i / 8, i % 8, 8)) return false;
    }
    return true;
  }
};

}  // namespace fathom::sm100
