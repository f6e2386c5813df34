#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/block_per_tile.cuh"
#include "fathom/kernels/cuda/products/row_products.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Bf16Gemm::Args;

bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && a.w.format() == Format::kBf16 && loads_in_vectors(a, 8);
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

Status run_blocks_per_tile(Exec& ex, const Args& a) {
  return run_block_per_tile<Bf16Codec>(ex, product_of(a));
}

Status run_any_layout(Exec& ex, const Args& a) {
  return run_any(ex, any_product_of(product_of(a), a.w.format()));
}

/// The contracts end at 16 tokens; more are calls of Bf16Gemm, whose variants add in other orders.
constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe | kSomeRowCounts;
constexpr MathUnit kBf16Unit = MathUnit::kBf16;

}  // namespace

constinit const VariantTable<LatentDownGemm> latent_down_gemm_cuda{
    {"warp_per_row", sm(90), "", kTraits, run_warp_per_row, MathUnit::kF32, takes_one_row, nullptr,
     suits_one_row},
    {"block_per_tile", sm(90), "K<=32768", kTraits, run_blocks_per_tile, kBf16Unit, is_bf16},
    {"any_layout", sm(90), "", kTraits, run_any_layout, MathUnit::kF32, has_rows},
};

constinit const VariantTable<RouterGemm> router_gemm_cuda{
    {"block_per_tile", sm(90), "K<=32768", kTraits, run_blocks_per_tile, kBf16Unit, is_bf16},
    {"any_layout", sm(90), "", kTraits, run_any_layout, MathUnit::kF32, has_rows},
};

}  // namespace fathom
