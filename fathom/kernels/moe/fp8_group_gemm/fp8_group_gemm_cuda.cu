#include "fathom/kernels/cuda/products/fp8_blocks.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Fp8GroupGemm::Args;

bool fills_tiles(const Args& a) {
  const ProductCall c = fp8_blocks::product(a);
  return fp8_blocks::is_bf16(a) && takes_tiles<TileFp8>(c, int64_t{kFewestExpertRows} * c.matrices);
}

constexpr uint32_t kTraits = kDeterministic | kGraphSafe;

/// On a GPU both kernels have one schedule: blocks take tiles and experts as they come, so that a
/// heavy expert is shared out among all of them anyway.
template <class K>
constexpr VariantTable<K> group_table() {
  return {
      {"tiles", sm(90), "E<=1024", kTraits, fp8_blocks::run_in_tiles, MathUnit::kBf16, fills_tiles},
      {"code_tiles", sm(90), "E<=1024", kTraits, fp8_blocks::run_code_tiles, MathUnit::kFp8,
       fp8_blocks::fills_code_tiles},
      {"streamed", sm(90), "E<=1024, K<=32768", kTraits, fp8_blocks::run_streamed, MathUnit::kBf16,
       fp8_blocks::is_bf16},
      {"each", sm(90), "", kTraits, fp8_blocks::run_each, MathUnit::kF32, has_rows},
  };
}

}  // namespace

constinit const VariantTable<Fp8GroupGemm> fp8_group_gemm_cuda = group_table<Fp8GroupGemm>();
constinit const VariantTable<Fp8GroupGemmSkewed> fp8_group_gemm_skewed_cuda =
    group_table<Fp8GroupGemmSkewed>();

}  // namespace fathom
