// FP8 weights in layout kRows16, with x in bf16 or decoded from E4M3.
#include "fathom/kernels/cpu/products/stream_loops.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_tiles_avx512.h"

namespace fathom {
namespace {

template <bool kScaledX>
struct Fp8Tiles : Fp8Product<E4m3Decoder, true, kScaledX> {
  using Base = Fp8Product<E4m3Decoder, true, kScaledX>;
  using F32 = typename Base::F32;

  static constexpr bool kHasGlobal = false;
  static constexpr int kGroups = 4;
  static constexpr int kRows = 4;
  static constexpr int64_t kBlockRows = 64;
  static constexpr int64_t kPassK = 4096;  // weights of four groups: 256 KiB
  static constexpr int64_t kUnit = 4;
  static constexpr int64_t kAhead = 2048;  // measured, see GEMM_NOTES.md

  template <int G, int T>
  static void pass(const Pass& a) {
    const Products& p = a.p;
    const E4m3Decoder decoder;
    const uint8_t* w = p.tiles + a.group * p.group_bytes + a.k0 / 4 * Base::kQuadBytes;
    Fp8Scales scales{.w = p.scales + a.group * p.group_scales + a.k0 / 128,
                     .w_stride = p.group_scales};
    if constexpr (kScaledX) {
      scales.x = reinterpret_cast<const float*>(a.x - a.k0 + p.x_scales_at) + a.k0 / 128;
      scales.x_stride = a.x_stride / 2;  // of elements of two bytes, in floats
    }
    F32 total[G][T];
    Base::load_sums(a, total);
    Base::add_blocks(decoder, w, p.group_bytes, a.index == 0 ? kAhead : 0, a.x, a.x_stride,
                     a.columns / 4, scales, total);
    Base::store_sums(a, total);
  }
};

}  // namespace

void fp8_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  StreamLoops<Fp8Tiles<false>>::run(p, item, scratch);
}

void fp8_scaled_x_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  StreamLoops<Fp8Tiles<true>>::run(p, item, scratch);
}

}  // namespace fathom
