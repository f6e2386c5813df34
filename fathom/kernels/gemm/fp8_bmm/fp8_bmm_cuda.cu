#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/block_per_tile.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/fp8_bmm/fp8_bmm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Fp8Bmm::Args;

bool is_aligned(const Args& a) {
  return a.w.dim(2) > 0 && a.w.dim(2) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(a.w.data) % 16 == 0 && takes_vectors(a.x);
}

ProductCall product(const Args& a) {
  return {.x = a.x.data,
          .x_row = a.x.stride(1),
          .x_matrix = a.x.stride(0),
          .x_format = a.x.format,
          .w = a.w.as<const uint8_t>(),
          .w_row = a.w.dim(2),
          .w_matrix = a.w.dim(1) * a.w.dim(2),
          .y = a.y.data,
          .y_row = a.y.stride(1),
          .y_matrix = a.y.stride(0),
          .y_format = a.y.format,
          .factors = {a.x_scale.as<const float>(), a.w_scale.as<const float>()},
          .matrices = static_cast<int32_t>(a.w.dim(0)),
          .T = static_cast<int32_t>(a.x.dim(1)),
          .N = static_cast<int32_t>(a.w.dim(1)),
          .K = static_cast<int32_t>(a.w.dim(2))};
}

Status run_blocks_per_tile(Exec& ex, const Args& a) {
  if (a.w.format == Format::kE5m2)
    return run_block_per_tile<Fp8Codec<__NV_E5M2, false>>(ex, product(a));
  return run_block_per_tile<Fp8Codec<__NV_E4M3, false>>(ex, product(a));
}

Status run_any_layout(Exec& ex, const Args& a) {
  return run_any(ex, any_product_of(product(a), a.w.format));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<Fp8Bmm> fp8_bmm_cuda{
    {"block_per_tile", sm(90), "K<=32768", kTraits, run_blocks_per_tile, MathUnit::kBf16,
     is_aligned},
    {"any_layout", sm(90), "", kTraits, run_any_layout},
};

}  // namespace fathom
