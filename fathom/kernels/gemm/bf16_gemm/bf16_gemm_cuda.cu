#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/persistent/persistent_products.cuh"
#include "fathom/kernels/cuda/products/row_products.cuh"
#include "fathom/kernels/cuda/products/run_tiles.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/bf16_gemm/bf16_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Bf16Gemm::Args;

bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && a.w.format() == Format::kBf16 && loads_in_vectors(a, 8);
}

/// A router has too few tiles of rows to fill the GPU: `persistent`, which reads it twice, is
/// faster up to 32 rows.
bool fills_tiles(const Args& a) {
  constexpr int64_t kNarrow = 1024;
  return is_bf16(a) &&
         takes_tiles<TileBf16<false>>(product_of(a), a.w.rows() < kNarrow && a.x.rank == 2
                                                         ? kFewestTileRowsOfOthers
                                                         : kFewestTileRows);
}

/// Logits and scores of routers keep float32: their sums are added up outside the tensor cores.
Status run_in_tiles(Exec& ex, const Args& a) {
  const ProductCall c = product_of(a);
  if (a.y.format == Format::kF32) return run_tiles<TileBf16<true>>(ex, c);
  return run_tiles<TileBf16<false>>(ex, c);
}

bool takes_one_row(const Args& a) {
  return is_bf16(a) && takes_rows(product_of(a));
}

bool suits_one_row(const Args& a, const DeviceInfo& gpu) {
  return rows_pay(product_of(a), gpu.num_sms);
}

Status run_warp_per_row(Exec& ex, const Args& a) {
  return run_rows(ex, product_of(a));
}

Status run_persistent_blocks(Exec& ex, const Args& a) {
  return run_persistent<Bf16Codec>(ex, product_of(a));
}

Status run_any_layout(Exec& ex, const Args& a) {
  return run_any(ex, any_product_of(product_of(a), a.w.format()));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;
constexpr uint32_t kTileTraits = kDeterministic | kGraphSafe;
constexpr MathUnit kBf16Unit = MathUnit::kBf16;

}  // namespace

constinit const VariantTable<Bf16Gemm> bf16_gemm_cuda{
    {"warp_per_row", sm(90), "", kTraits | kSomeRowCounts, run_warp_per_row, MathUnit::kF32,
     takes_one_row, nullptr, suits_one_row},
    {"tiles", sm(90), "", kTileTraits, run_in_tiles, kBf16Unit, fills_tiles},
    {"persistent", sm(90), "K<=16384", kTraits, run_persistent_blocks, MathUnit::kBf16, is_bf16},
    {"any_layout", sm(90), "", kTraits, run_any_layout, MathUnit::kF32, has_rows},
};

constinit const VariantTable<Bf16Bmm> bf16_bmm_cuda{
    {"tiles", sm(90), "", kTileTraits, run_in_tiles, kBf16Unit, fills_tiles},
    {"persistent", sm(90), "K<=16384", kTraits, run_persistent_blocks, kBf16Unit, is_bf16},
    {"any_layout", sm(90), "", kTraits, run_any_layout, MathUnit::kF32, has_rows},
};

}  // namespace fathom
