#include "fathom/kernels/norm/inverse_rms_avx512.h"
#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write_rows.h"
#include "fathom/kernels/rope/rope/rotate_avx512.h"

namespace fathom::avx512 {
namespace {

using Args = QnormRopeKvWrite::Args;

/// A head goes through the first-level cache twice: for its sum of squares, then for its values.
/// Memory bounds the call where a step has many tokens; next_q and next_out are heads that come
/// soon.
template <class A>
void query_head(const A* q,
                A* out,
                const float* table_row,
                const Args& a,
                float* room,
                const A* next_q,
                const A* next_out) {
  const int64_t R = a.table.dim(1);
  const int64_t D = a.kv.dim(1);
  const int64_t plain = D - R;
  const __m512 r = _mm512_set1_ps(inverse_rms_of(D, a.eps, [&](int64_t d, __mmask16 mask) {
    prefetch_to_read(next_q + d);
    return load16(q + d, mask);
  }));
  // By way of room, since out may be q.
  for_lanes(R, [&](int64_t i, __mmask16 mask) {
    store16(room + i, mask, _mm512_mul_ps(load16(q + plain + i, mask), r));
  });
  rotate_head(room, out + plain, table_row, R, RopeStyle::kInterleaved);
  for_lanes(plain, [&](int64_t i, __mmask16 mask) {
    prefetch_to_write(next_out + i);
    store16(out + i, mask, _mm512_mul_ps(load16(q + i, mask), r));
  });
}

template <class A, class W>
void norm_kv(const A* kv, const W* weight, int64_t D, float eps, float* row) {
  const __m512 r = _mm512_set1_ps(
      inverse_rms_of(D, eps, [&](int64_t d, __mmask16 mask) { return load16(kv + d, mask); }));
  for_lanes(D, [&](int64_t i, __mmask16 mask) {
    const __m512 normed = _mm512_mul_ps(load16(kv + i, mask), r);
    store16(row + i, mask, _mm512_mul_ps(normed, load16(weight + i, mask)));
  });
}

template <class A>
void cache_token(
    const Args& a, const CodedRows& rows, int64_t t, const float* table_row, float* row) {
  const int64_t slot = a.slots.present() ? a.slots.as<int64_t>()[t] : t;
  if (slot < 0) return;
  const int64_t R = a.table.dim(1);
  const int64_t D = a.kv.dim(1);
  const A* kv = a.kv.row<A>(t);
  if (!a.kv_norm.present()) {
    for_lanes(D, [&](int64_t i, __mmask16 mask) { store16(row + i, mask, load16(kv + i, mask)); });
  } else if (a.kv_norm.format == Format::kBf16) {
    norm_kv(kv, a.kv_norm.as<Bf16>(), D, a.eps, row);
  } else {
    norm_kv(kv, a.kv_norm.as<float>(), D, a.eps, row);
  }
  rotate_head(row + D - R, row + D - R, table_row, R, RopeStyle::kInterleaved);
  avx512::store_cache_row(rows, slot, row);
}

template <class A>
void write_tokens(const Args& a, float* room, int64_t begin, int64_t end) {
  const int64_t H = a.q.dim(1);
  const CodedRows rows = cache_rows(a.fields());
  const auto head_of = [](const View& v, int64_t t, int64_t h) {
    return v.row<A>(t) + h * v.stride(1);
  };
  for (int64_t t = begin; t < end; ++t) {
    const float* table_row = a.table.row<float>(a.positions.as<int32_t>()[t]);
    for (int64_t h = 0; h < H; ++h) {
      const bool last = h + 1 == H;
      const int64_t next_t = last && t + 1 < end ? t + 1 : t;
      const int64_t next_h = last ? 0 : h + 1;
      query_head(head_of(a.q, t, h), head_of(a.q_out, t, h), table_row, a, room,
                 head_of(a.q, next_t, next_h), head_of(a.q_out, next_t, next_h));
    }
    cache_token<A>(a, rows, t, table_row, room);
  }
}

}  // namespace

void qnorm_rope_kv_write_rows(const Args& a, float* room, int64_t begin, int64_t end) {
  if (a.kv.format == Format::kBf16) return write_tokens<Bf16>(a, room, begin, end);
  write_tokens<float>(a, room, begin, end);
}

}  // namespace fathom::avx512
