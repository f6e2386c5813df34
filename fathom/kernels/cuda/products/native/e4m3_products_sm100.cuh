// Products of x in E4M3, or in bf16 as two E4M3 numbers: one matrix, one a head or one an expert.
// Compiled, never run.
#pragma once

#include "fathom/kernels/cuda/products/native/grouped_sm100.cuh"
#include "fathom/kernels/cuda/products/native/native_row.cuh"

namespace fathom::sm100 {

/// Tiles of k of a tensor [.., .., k, ..], each read `parts` times before the next one.
template <class Tensor>
CUTE_HOST_DEVICE constexpr auto read_again(const Tensor& t, int parts) {
  const auto& all = t.layout();
  const auto tiles = cute::make_layout(cute::make_layout(parts, cute::_0{}), cute::layout<2>(all));
  return cute::make_tensor(t.data(), cute::make_layout(cute::layout<0>(all), cute::layout<1>(all),
                                                       tiles, cute::layout<3>(all)));
}

static_assert(cute::get<2>(read_again(cute::make_identity_tensor(cute::make_shape(1, 1, 8, 1)),
                                      2)(0, 0, 5, 0)) == 2);

/// A collective whose x has parts for each tile of k, side by side, that all multiply the one of w.
/// Rows of w are packed.
template <class Mainloop>
struct InParts : Mainloop {
  using Mainloop::Mainloop;

  template <class Inputs, class Shape, class Params>
  CUTLASS_DEVICE static auto again(const Inputs& inputs, const Shape& s, const Params& p, int e) {
    const auto parts = static_cast<int>(cute::get<2>(s) / cute::get<0>(p.dB[e]));
    const auto with_w = cute::replace<3>(inputs, read_again(cute::get<3>(inputs), parts));
    if constexpr (9 < cute::tuple_size<Inputs>::value)
      return cute::replace<7>(with_w, read_again(cute::get<7>(inputs), parts));  // scales of w
    else
      return with_w;
  }

  // Of collectives whose tensor cores multiply scales.
  template <class Shape, class Params, class Tensors, class Maps>
  CUTLASS_DEVICE auto load_init(
      const Shape& s, const Params& p, Tensors& t, Maps& m, int sms, int sm, int e) const {
    return again(Mainloop::load_init(s, p, t, m, sms, sm, e), s, p, e);
  }

  // Of those whose sums are scaled.
  template <class Shape, class Params, class Tensors, class Maps>
  CUTLASS_DEVICE auto load_ab_init(
      const Shape& s, const Params& p, Tensors& t, Maps& m, int sms, int sm, int e) const {
    return again(Mainloop::load_ab_init(s, p, t, m, sms, sm, e), s, p, e);
  }
};

/// What the collectives, their copies and split_rows ask of sizes and addresses.
inline bool fits_native(const ProductCall& c) {
  const auto aligned = [](const void* p, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
  };
  const bool split = c.x_format == Format::kBf16 && c.x_row % 4 == 0 && c.x_matrix % 4 == 0;
  const bool codes = c.x_format == Format::kE4m3 && c.x_row % 16 == 0 && c.x_row >= c.K &&
                     c.x_scale_row == c.K / kTileK && c.x_scale_block == 1;
  return (split || codes) && c.y_format == Format::kBf16 && !c.gated && c.T > 0 && c.K > 0 &&
         c.K % kTileK == 0 && c.N % 8 == 0 && c.y_row % 8 == 0 && c.y_matrix % 8 == 0 &&
         aligned(c.x, split ? 8 : 16) && aligned(c.y, 16) && aligned(c.w, 32) &&
         aligned(c.scales, 4);
}

/// The form says how scales lie; those of w are copied so at each call.
template <class Form>
struct E4m3Product {
  int64_t rows;  ///< of all matrices
  uint8_t* codes = nullptr;
  typename Form::XScales x_scales{};
  typename Form::WScale* w_scales;
  GroupCall call;
  Parts parts;

  E4m3Product(const ProductCall& c, void* memory) : call{.c = c}, parts{memory} {
    rows = c.offsets != nullptr ? c.T : int64_t{c.T} * c.matrices;
    call.parts = c.x_format == Format::kBf16 ? 2 : 1;
    call.x_scales = c.x_scales;
    x_scales.columns = call.parts * c.K / Form::kBlock;
    call.x_scale_row = x_scales.columns * static_cast<int64_t>(sizeof(*x_scales.data));
    if (call.parts == 2) {
      parts.take(codes, rows * 2 * c.K);
      parts.take(x_scales.data, Form::XScales::first_of(rows, c.matrices) * x_scales.columns);
      call.c.x = codes;
      call.c.x_row = 2 * c.K;
      call.x_scales = x_scales.data;
    }
    const int64_t count = Form::w_scale_count(c, call.parts);
    parts.take(w_scales, count * c.matrices);
    call.w_scales = w_scales;
    call.w_scale_bytes = count * static_cast<int64_t>(sizeof(*w_scales));
  }

  static int64_t workspace(const ProductCall& c, const Exec& ex) {
    const E4m3Product p(c, nullptr);
    return groups_workspace<Form>(p.call.c, p.parts, ex);
  }

  static Status run(Exec& ex, const ProductCall& c) {
    const E4m3Product p(c, ex.workspace);
    if (p.codes != nullptr) {
      const int64_t warps = p.rows * (c.K / kTileK);
      FATHOM_TRY(launch_kernel(
          ex, split_rows<typename Form::XScales>,
          {.blocks = ceil_div<int64_t>(warps, kSplitWarps), .threads = kSplitWarps * 32}, c, p.rows,
          p.codes, p.x_scales));
    }
    const int64_t blocks = ceil_div<int64_t>(p.call.w_scale_bytes, 4 * 256);
    FATHOM_TRY(
        launch_kernel(ex, Form::kCopyScales,
                      {.blocks = std::min<int64_t>(blocks, 8 * ex.device->num_sms), .threads = 256},
                      c, p.call.parts, p.w_scales));
    return run_groups<Form>(ex, p.call, p.parts);
  }
};

/// copy(e, i) for each of the `count` scales of every matrix that has rows.
template <class Copy>
__device__ void copy_scales(const ProductCall& c, int count, Copy&& copy) {
  cuda::wait_for_previous();
  for (int e = 0; e < c.matrices; ++e) {
    if (first_row(c, e) == first_row(c, e + 1)) continue;
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < count;
         i += static_cast<int>(gridDim.x * blockDim.x))
      copy(e, i);
  }
}

/// Linear scales of 32 k, four in a word, to swizzled ones.
static __global__ void swizzle_scales(ProductCall c, int /*parts*/, uint32_t* to) {
  const int words = c.K / kTileK;
  const int64_t matrix = int64_t{(c.N + 127) / 128} * 128 * words;
  copy_scales(c, c.N * words, [&](int e, int i) {
    const int64_t byte = swizzled_128x4_offset(i / words, i % words * 4, words * 4);
    to[e * matrix + byte / 4] =
        reinterpret_cast<const uint32_t*>(c.scales)[int64_t{e} * c.N * words + i];
  });
}

/// x as MXFP8 times W, whose rows are whole groups of kAlignment.
template <class W, int kAlignment>
using MxMainloop = GroupMainloop<
    cutlass::arch::OpClassBlockScaledTensorOp,
    Operand<cutlass::mx_float8_t<cutlass::float_e4m3_t>, cutlass::layout::RowMajor*, 16>,
    Operand<W, cutlass::layout::ColumnMajor*, kAlignment>,
    cute::Shape<cute::_128, cute::_128, cute::_128>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecialized1SmMxf8f6f4Sm100>;

template <class W, int kAlignment>
struct MxForm : BlockScaledForm<InParts<MxMainloop<W, kAlignment>>, 32> {
  using WScale = uint32_t;
  static constexpr int kBlock = 32;
  static constexpr auto kCopyScales = swizzle_scales;

  static int64_t w_scale_count(const ProductCall& c, int /*parts*/) {
    return swizzled_128x4_bytes(c.N, c.K / kBlock) / 4;
  }
};

template <class Form>
constexpr NativeProduct mx_product() {
  static_assert(Form::lie_swizzled());
  return {[](const ProductCall& c) {
            return fits_native(c) && c.x_format == Format::kBf16 &&
                   c.scale_format == Format::kUe8m0;
          },
          E4m3Product<Form>::workspace, E4m3Product<Form>::run};
}

}  // namespace fathom::sm100
