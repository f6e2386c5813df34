#include "fathom/kernels/cuda/products/fp8_blocks.cuh"
#include "fathom/kernels/cuda/products/native/native_row.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_experts.cuh"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_gated.cuh"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Fp8GroupGemm::Args;

bool suits_tiles(const ProductCall& c) {
  return takes_tiles<TileFp8>(c, int64_t{kFewestExpertRows} * c.matrices);
}

bool fills_tiles(const Args& a) {
  return fp8_blocks::is_bf16(a) && suits_tiles(fp8_blocks::product(a));
}

bool is_persistent(const Args& a) {
  return fp8_blocks::is_bf16(a) &&
         takes_persistent<Fp8Codec<__NV_E4M3, true>>(fp8_blocks::product(a));
}

using Run = Status (*)(Exec& ex, const Args& a);
using RunGated = Status (*)(Exec& ex, const ProductCall& c);

/// One of the two, as the call has a gate or not.
template <Run kPlain, RunGated kGated>
Status run_either(Exec& ex, const Args& a) {
  return a.gate.on ? kGated(ex, fp8_blocks::product(a)) : kPlain(ex, a);
}

constexpr uint32_t kTileTraits = kDeterministic | kGraphSafe;
constexpr uint32_t kTraits = kTileTraits | kBatchInvariant;
static_assert(std::min(kMostExperts<TileFp8>, kMostExperts<TileFp8Pair<true>>) >= 1024);

/// On a GPU both kernels have one schedule: blocks take tiles and experts as they come, so that a
/// heavy expert is shared out among all of them anyway.
template <class K>
constexpr VariantTable<K> group_table() {
  return {
#ifdef FATHOM_SM100
      sm100::native_row<K, sm100::kFp8Blocks>(),
#endif
      {"tiles", sm(90), "E<=1024", kTileTraits,
       run_either<fp8_blocks::run_in_tiles, run_gated_fp8_weight_tiles>, MathUnit::kBf16,
       fills_tiles},
      {"fp8_tiles", sm(90), "E<=1024", kTileTraits, fp8_blocks::run_fp8_tiles, MathUnit::kFp8,
       ungated<Args, fp8_blocks::fills_fp8_tiles>},
      {"warp_split_k", sm(90), "E<=1024, K>=1536, K<=7680", kTraits | kSomeRowCounts,
       run_either<fp8_blocks::run_warp_split_k, run_gated_fp8_split_k>, MathUnit::kBf16,
       fp8_blocks::is_split_k},
      {"persistent", sm(90), "E<=1024, K<=16384", kTraits,
       run_either<fp8_blocks::run_persistent_blocks, run_gated_fp8_persistent>, MathUnit::kBf16,
       is_persistent},
      {"block_per_tile", sm(90), "E<=1024, K<=32768", kTraits, fp8_blocks::run_blocks_per_tile,
       MathUnit::kBf16, ungated<Args, fp8_blocks::is_bf16>},
      {"any_layout", sm(90), "", kTraits, fp8_blocks::run_any_layout, MathUnit::kF32, has_rows},
  };
}

}  // namespace

namespace cuda {

Status run_fp8_experts(Exec& ex, const ProductCall& c) {
  if (c.x_scales != nullptr) return run_tiles<TileFp8Pair<true>>(ex, c);
  if (suits_tiles(c)) return run_tiles<TileFp8>(ex, c);
  if (takes_split_k<SplitKFp8>(c)) return run_split_k<SplitKFp8>(ex, c);
  constexpr int kMostK = 16384;  // of `persistent`
  if (c.K <= kMostK) return run_persistent<Fp8Codec<__NV_E4M3, true>>(ex, c);
  return run_block_per_tile<Fp8Codec<__NV_E4M3, true>>(ex, c);
}

}  // namespace cuda

constinit const VariantTable<Fp8GroupGemm> fp8_group_gemm_cuda = group_table<Fp8GroupGemm>();
constinit const VariantTable<Fp8GroupGemmSkewed> fp8_group_gemm_skewed_cuda =
    group_table<Fp8GroupGemmSkewed>();

}  // namespace fathom
