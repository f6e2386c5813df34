// FP8 blocks: tensor cores add up 128 k, and other threads scale that into sums in float32.
// Compiled, never run.
#include "fathom/kernels/cuda/products/native/e4m3_products_sm100.cuh"

namespace fathom::sm100 {
namespace {

/// Scales of w in float32, row-major, each once for every part of x.
__global__ void repeat_scales(ProductCall c, int parts, float* to) {
  const int columns = c.K / kTileK * parts;
  const int count = (c.N + kTileK - 1) / kTileK * columns;
  copy_scales(c, count, [&](int e, int i) {
    to[int64_t{e} * count + i] = cuda::block_scale(c, e, i / columns, i % columns / parts);
  });
}

using Layouts = cutlass::detail::
    Sm100BlockwiseScaleConfig<1, kTileK, kTileK, cute::UMMA::Major::K, cute::UMMA::Major::K>;

template <class Layout, class ScaleLayout>
using Codes = Operand<cutlass::float_e4m3_t, cute::tuple<Layout*, ScaleLayout*>, 16>;

using Mainloop = GroupMainloop<cutlass::arch::OpClassTensorOp,
                               Codes<cutlass::layout::RowMajor, Layouts::LayoutSFA>,
                               Codes<cutlass::layout::ColumnMajor, Layouts::LayoutSFB>,
                               cute::Shape<cute::_128, cute::_128, cute::_128>,
                               cutlass::gemm::KernelPtrArrayTmaWarpSpecializedBlockwise1SmSm100>;

struct BlockForm {
  using Kernel = GroupKernel<InParts<Mainloop>>;
  using XScales = BlockScales;
  using WScale = float;
  static constexpr int kBlock = kTileK;
  static constexpr auto kCopyScales = repeat_scales;

  CUTE_HOST_DEVICE static constexpr auto x_scale_layout(int rows, int n, int k) {
    return Layouts::tile_atom_to_shape_SFA(cute::make_shape(rows, n, k, 1));
  }

  CUTE_HOST_DEVICE static constexpr auto w_scale_layout(int rows, int n, int k, int parts) {
    return Layouts::tile_atom_to_shape_SFB(cute::make_shape(rows, n, k * parts, 1));
  }

  static int64_t w_scale_count(const ProductCall& c, int parts) {
    return ceil_div<int64_t>(c.N, kBlock) * (c.K / kBlock) * parts;
  }
};

// Rows of 8 and of 6 scales, as the kernels write them.
static_assert(BlockForm::x_scale_layout(5, 300, 8 * kTileK)(4, 7 * kTileK, 0) == 4 * 8 + 7 &&
              BlockForm::w_scale_layout(5, 300, 3 * kTileK, 2)(2 * kTileK, 5 * kTileK, 0) ==
                  2 * 6 + 5);

}  // namespace

constexpr NativeProduct kFp8Blocks{fits_native, E4m3Product<BlockForm>::workspace,
                                   E4m3Product<BlockForm>::run};

}  // namespace fathom::sm100
