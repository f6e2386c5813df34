#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/row_products.cuh"
#include "fathom/kernels/cuda/products/stream_products.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Bf16Gemm::Args;

bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && a.w.format() == Format::kBf16 && streams(a, 8);
}

bool takes_one_row(const Args& a) {
  return is_bf16(a) && takes_rows(product_of(a));
}

Status run_by_row(Exec& ex, const Args& a) {
  return run_rows(ex, product_of(a));
}

Status run_streamed(Exec& ex, const Args& a) {
  return run_stream<Bf16Codec>(ex, product_of(a));
}

Status run_each(Exec& ex, const Args& a) {
  return run_any(ex, any_product_of(product_of(a), a.w.format()));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;
constexpr MathUnit kBf16Unit = MathUnit::kBf16;

}  // namespace

constinit const VariantTable<LatentDownGemm> latent_down_gemm_cuda{
    {"by_row", sm(90), "", kTraits, run_by_row, MathUnit::kF32, takes_one_row},
    {"streamed", sm(90), "K<=32768", kTraits, run_streamed, kBf16Unit, is_bf16},
    {"each", sm(90), "", kTraits, run_each, MathUnit::kF32, has_rows},
};

constinit const VariantTable<RouterGemm> router_gemm_cuda{
    {"streamed", sm(90), "K<=32768", kTraits, run_streamed, kBf16Unit, is_bf16},
    {"each", sm(90), "", kTraits, run_each, MathUnit::kF32, has_rows},
};

}  // namespace fathom
