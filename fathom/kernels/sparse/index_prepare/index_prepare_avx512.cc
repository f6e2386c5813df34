#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/sparse/index_prepare/index_prepare_rows.h"

namespace fathom::avx512 {
namespace {

template <class A>
void query_rows(const IndexQuery::Args& a, int64_t begin, int64_t end) {
  const IndexSteps steps = steps_of(a);
  const int64_t H = a.q.dim(1);
  const bool bf16_weights = a.w.format == Format::kBf16;
  alignas(64) float x[kMaxIndexWidth];
  for (int64_t t = begin; t < end; ++t) {
    const float* table_row = a.table.row<const float>(position_of(a.positions, t));
    float* w_out = a.w_out.row<float>(t);
    for (int64_t h = 0; h < H; ++h) {
      const A* q = a.q.row<const A>(t) + h * a.q.stride(1);
      for_lanes(steps.width, [&](int64_t d, __mmask16 mask) {
        _mm512_mask_store_ps(x + d, mask, load16(q + d, mask));
      });
      avx512::rotate_index_row(steps, table_row, x);
      avx512::transform_index_row(steps, x);
      const float scale = avx512::store_index_row(steps, x, query_out(a, t, h));
      const float w =
          bf16_weights ? to_float(a.w.row<const Bf16>(t)[h]) : a.w.row<const float>(t)[h];
      w_out[h] = w * a.weight_scale * scale;
    }
  }
}

}  // namespace

void index_query_rows(const IndexQuery::Args& a, int64_t begin, int64_t end) {
  a.q.format == Format::kBf16 ? query_rows<Bf16>(a, begin, end) : query_rows<float>(a, begin, end);
}

}  // namespace fathom::avx512
