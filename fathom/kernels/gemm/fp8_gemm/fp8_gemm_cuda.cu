#include "fathom/kernels/cuda/products/fp8_blocks.cuh"
#include "fathom/kernels/cuda/products/native/native_row.cuh"
#include "fathom/kernels/cuda/products/prefetched/prefetched_fp8.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;
constexpr uint32_t kTileTraits = kDeterministic | kGraphSafe;

template <class Args>
bool fills_tiles(const Args& a) {
  return fp8_blocks::is_bf16(a) && takes_tiles<TileFp8>(product_of(a), kFewestTileRows);
}

template <class Args>
Status run_in_tiles(Exec& ex, const Args& a) {
  return run_tiles<TileFp8>(ex, product_of(a));
}

template <class Args>
bool is_prefetched(const Args& a) {
  return fp8_blocks::is_bf16(a) && takes_prefetched<PrefetchedFp8Plan>(product_of(a));
}

template <class Args>
bool suits_prefetched(const Args& a, const DeviceInfo& gpu) {
  return prefetched_pays<PrefetchedFp8Plan>(product_of(a), gpu.num_sms);
}

template <class Args>
Status run_prefetched_blocks(Exec& ex, const Args& a) {
  return run_prefetched<PrefetchedFp8>(ex, product_of(a));
}

namespace blocks {

using Args = Fp8BlockGemm::Args;

bool suits_split_k(const Args& a, const DeviceInfo& gpu) {
  return split_k_pays_for_fp8(product_of(a), gpu.num_sms);
}

}  // namespace blocks

namespace heads {

using Args = Fp8BlockBmm::Args;

Status run_persistent_blocks(Exec& ex, const Args& a) {
  return run_persistent<Fp8Codec<__NV_E4M3, true>>(ex, product_of(a));
}

Status run_any_layout(Exec& ex, const Args& a) {
  return run_any(ex, any_product_of(product_of(a), Format::kE4m3));
}

}  // namespace heads

namespace channels {

using Args = Fp8Gemm::Args;

ProductCall product(const Args& a) {
  ProductCall c = product_of(a);
  c.scales = nullptr;
  c.row_scales = a.x_scales.as<const float>();
  c.column_scales = a.w.scales.as<const float>();
  if (a.bias.present()) {
    c.bias = a.bias.data;
    c.bias_format = a.bias.format;
  }
  return c;
}

bool is_aligned(const Args& a) {
  return loads_in_vectors(a, 16);
}

bool fills_tiles(const Args& a) {
  return has_rows(a) && a.y.format != Format::kF32 &&
         takes_tiles<TileFp8Pair<false>>(product(a), kFewestTileRows);
}

Status run_in_tiles(Exec& ex, const Args& a) {
  return run_tiles<TileFp8Pair<false>>(ex, product(a));
}

Status run_blocks_per_tile(Exec& ex, const Args& a) {
  return run_block_per_tile<Fp8Codec<__NV_E4M3, false>>(ex, product(a));
}

Status run_any_layout(Exec& ex, const Args& a) {
  return run_any(ex, any_product_of(product(a), Format::kE4m3));
}

}  // namespace channels
}  // namespace

constinit const VariantTable<Fp8BlockGemm> fp8_block_gemm_cuda{
#ifdef FATHOM_SM100
    sm100::native_row<Fp8BlockGemm, sm100::kFp8Blocks>(),
#endif
    {"tiles", sm(90), "", kTileTraits, run_in_tiles, MathUnit::kBf16, fills_tiles},
    {"fp8_tiles", sm(90), "", kTileTraits, fp8_blocks::run_fp8_tiles, MathUnit::kFp8,
     fp8_blocks::fills_fp8_tiles},
    {"prefetched", sm(90), "T<=16, K<=8192", kTraits | kSomeRowCounts, run_prefetched_blocks,
     MathUnit::kBf16, is_prefetched, nullptr, suits_prefetched},
    {"warp_split_k", sm(90), "T<=8, K>=1536, K<=7680", kTraits | kSomeRowCounts,
     fp8_blocks::run_warp_split_k, MathUnit::kBf16, fp8_blocks::is_split_k, nullptr,
     blocks::suits_split_k},
    {"persistent", sm(90), "N>=7168, K>=2048, K<=16384", kTraits, fp8_blocks::run_persistent_blocks,
     MathUnit::kBf16, fp8_blocks::is_bf16},
    {"block_per_tile", sm(90), "K<=32768", kTraits, fp8_blocks::run_blocks_per_tile,
     MathUnit::kBf16, fp8_blocks::is_bf16},
    {"any_layout", sm(90), "", kTraits, fp8_blocks::run_any_layout, MathUnit::kF32, has_rows},
};

constinit const VariantTable<Fp8BlockBmm> fp8_block_bmm_cuda{
#ifdef FATHOM_SM100
    sm100::native_row<Fp8BlockBmm, sm100::kFp8Blocks>(),
#endif
    {"tiles", sm(90), "", kTileTraits, run_in_tiles, MathUnit::kBf16, fills_tiles},
    {"prefetched", sm(90), "T<=16, K<=8192", kTraits | kSomeRowCounts, run_prefetched_blocks,
     MathUnit::kBf16, is_prefetched, nullptr, suits_prefetched},
    {"persistent", sm(90), "K<=16384", kTraits, heads::run_persistent_blocks, MathUnit::kBf16,
     fp8_blocks::is_bf16},
    {"any_layout", sm(90), "", kTraits, heads::run_any_layout, MathUnit::kF32, has_rows},
};

constinit const VariantTable<Fp8Gemm> fp8_gemm_cuda{
    {"fp8_tiles", sm(90), "", kTileTraits, channels::run_in_tiles, MathUnit::kFp8,
     channels::fills_tiles},
    {"block_per_tile", sm(90), "K<=32768", kTraits, channels::run_blocks_per_tile, MathUnit::kBf16,
     channels::is_aligned},
    {"any_layout", sm(90), "", kTraits, channels::run_any_layout, MathUnit::kF32, has_rows},
};

}  // namespace fathom
