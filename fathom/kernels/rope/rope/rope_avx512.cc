#include "fathom/kernels/rope/rope/rope_rows.h"
#include "fathom/kernels/rope/rope/rotate_avx512.h"

namespace fathom::avx512 {
namespace {

template <class A>
void rope_inplace_loop(const RopeInplace::Args& a, int64_t begin, int64_t end) {
  const int64_t R = a.q.dim(2);
  for (int64_t t = begin; t < end; ++t) {
    const float* table_row = a.table.row<float>(a.positions.as<int32_t>()[t]);
    for (int64_t n = 0; n < a.q.dim(1); ++n) {
      A* q = a.q.row<A>(t) + n * a.q.stride(1);
      rotate_head(q, q, table_row, R, a.style, 1.0f);
    }
    if (!a.k.present()) continue;
    A* k = a.k.row<A>(t);
    rotate_head(k, k, table_row, R, a.style, 1.0f);
  }
}

}  // namespace

void rope_inplace_rows(const RopeInplace::Args& a, int64_t begin, int64_t end) {
  if (a.q.format == Format::kBf16) return rope_inplace_loop<Bf16>(a, begin, end);
  rope_inplace_loop<float>(a, begin, end);
}

}  // namespace fathom::avx512
