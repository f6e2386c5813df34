#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant_rows.h"
#include "fathom/kernels/rope/rope/rotate_avx512.h"

namespace fathom::avx512 {
namespace {

/// out = convert( [ lat | rope(pe) ] / scale ).
template <class In, class Out>
void prepare_row(const In* lat,
                 const In* pe,
                 Out* out,
                 const float* table_row,
                 int64_t L,
                 int64_t R,
                 RopeStyle style,
                 float scale) {
  const __m512 divisor = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < L; i += kLanes) {
    const __mmask16 mask = first_lanes(L - i);
    const __m512 v = load16(lat + i, mask);
    store16(out + i, mask, scale == 1.0f ? v : _mm512_div_ps(v, divisor));
  }
  rotate_head(pe, out + L, table_row, R, style, scale);
}

template <class In, class Q, class C>
void mla_rope_write_loop(const MlaRopeWrite::Args& a, int64_t begin, int64_t end) {
  const int64_t L = a.q_lat.dim(2);
  const int64_t R = a.q_pe.dim(2);
  for (int64_t t = begin; t < end; ++t) {
    const float* table_row = a.table.row<float>(a.positions.as<int32_t>()[t]);
    for (int64_t n = 0; n < a.q.dim(1); ++n) {
      prepare_row(a.q_lat.row<In>(t) + n * a.q_lat.stride(1),
                  a.q_pe.row<In>(t) + n * a.q_pe.stride(1), a.q.row<Q>(t) + n * a.q.stride(1),
                  table_row, L, R, a.style, a.q_scale);
    }
    const int64_t slot = a.slots.as<int64_t>()[t];
    if (slot < 0) continue;
    prepare_row(a.c.row<In>(t), a.k_pe.row<In>(t), slot_data<C>(a.cache, slot), table_row, L, R,
                a.style, a.kv_scale);
  }
}

template <class In, class Q>
void loop_to_cache(const MlaRopeWrite::Args& a, int64_t begin, int64_t end) {
  if (a.cache.format == Format::kBf16) return mla_rope_write_loop<In, Q, Bf16>(a, begin, end);
  if (a.cache.format == Format::kE4m3) return mla_rope_write_loop<In, Q, E4m3>(a, begin, end);
  mla_rope_write_loop<In, Q, float>(a, begin, end);
}

template <class In>
void loop_to_query(const MlaRopeWrite::Args& a, int64_t begin, int64_t end) {
  if (a.q.format == Format::kBf16) return loop_to_cache<In, Bf16>(a, begin, end);
  if (a.q.format == Format::kE4m3) return loop_to_cache<In, E4m3>(a, begin, end);
  loop_to_cache<In, float>(a, begin, end);
}

}  // namespace

void mla_rope_write_rows(const MlaRopeWrite::Args& a, int64_t begin, int64_t end) {
  if (a.q_lat.format == Format::kBf16) return loop_to_query<Bf16>(a, begin, end);
  loop_to_query<float>(a, begin, end);
}

}  // namespace fathom::avx512
