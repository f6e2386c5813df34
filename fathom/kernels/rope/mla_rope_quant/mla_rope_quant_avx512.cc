#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant_rows.h"
#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/rope/rope/rotate_avx512.h"

namespace fathom::avx512 {
namespace {

/// A head is a few pieces of memory; so many heads ahead they are asked for.
constexpr int64_t kHeadsAhead = 4;

/// Head n of token t of a view [T,N,D].
template <class T>
T* head_of(const View& v, int64_t t, int64_t n) {
  return v.row<T>(t) + n * v.stride(1);
}

/// Head and token of what comes kHeadsAhead later; the same one near the end.
struct Later {
  int64_t t;
  int64_t n;

  Later(int64_t token, int64_t head, int64_t num_heads, int64_t end)
      : t(token + (head + kHeadsAhead) / num_heads), n((head + kHeadsAhead) % num_heads) {
    if (t < end) return;
    t = token;
    n = head;
  }
};

/// out = convert(finish(in)) of n values; the places of next_in and next_out are needed soon.
template <class In, class Out, class Finish>
void convert_values(
    const In* in, Out* out, int64_t n, Finish finish, const In* next_in, const Out* next_out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    prefetch_to_read(next_in + i);
    prefetch_to_write(next_out + i);
    store16(out + i, mask, finish(load16(in + i, mask)));
  }
}

template <class T>
void prefetch_piece(const T* p, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T)))
    prefetch_to_read(p + i);
}

/// One head in and out: what is copied and what is rotated.
template <class In, class Out>
struct Head {
  const In* lat;
  const In* pe;
  Out* lat_out;
  Out* pe_out;
};

/// lat_out = convert(finish(lat)), pe_out = convert(finish(rope(pe))).
template <class In, class Out, class Finish>
void convert_head(const Head<In, Out>& head,
                  const Head<In, Out>& next,
                  const float* table_row,
                  int64_t L,
                  int64_t R,
                  RopeStyle style,
                  Finish finish) {
  prefetch_piece(next.pe, R);
  prefetch_to_write(next.pe_out);
  convert_values(head.lat, head.lat_out, L, finish, next.lat, next.lat_out);
  rotate_head(head.pe, head.pe_out, table_row, R, style, finish);
}

template <class In, class Out>
void mla_rope_quant_loop(const MlaRopeQuantFp8::Args& a, int64_t begin, int64_t end) {
  const int64_t N = a.q_pe.dim(1);
  const int64_t L = a.c.dim(1);
  const int64_t R = a.k_pe.dim(1);
  const auto query = [&](int64_t t, int64_t n) {
    return Head<In, Out>{head_of<In>(a.q_lat, t, n), head_of<In>(a.q_pe, t, n),
                         head_of<Out>(a.q_lat_out, t, n), head_of<Out>(a.q_pe_out, t, n)};
  };
  for (int64_t t = begin; t < end; ++t) {
    const float* table_row = a.table.row<float>(position_of(a.positions, t));
    for (int64_t n = 0; n < N; ++n) {
      const Later later(t, n, N, end);
      convert_head(query(t, n), query(later.t, later.n), table_row, L, R, a.style,
                   MultipliedBy{a.q_scale});
    }
    const Head<In, Out> key = {a.c.row<In>(t), a.k_pe.row<In>(t), a.c_out.row<Out>(t),
                               a.k_pe_out.row<Out>(t)};
    convert_head(key, key, table_row, L, R, a.style, MultipliedBy{a.kv_scale});
  }
}

template <class In>
void mla_rope_quant_loop_from(const MlaRopeQuantFp8::Args& a, int64_t begin, int64_t end) {
  if (a.c_out.format == Format::kE4m3) return mla_rope_quant_loop<In, E4m3>(a, begin, end);
  mla_rope_quant_loop<In, E5m2>(a, begin, end);
}

/// As convert_head, divided by scale: the same bits without the divisions where it is 1.
template <class In, class Out>
void write_head(const Head<In, Out>& head,
                const Head<In, Out>& next,
                const float* table_row,
                int64_t L,
                int64_t R,
                RopeStyle style,
                float scale) {
  if (scale == 1.0f) return convert_head(head, next, table_row, L, R, style, Unscaled{});
  convert_head(head, next, table_row, L, R, style, DividedBy{scale});
}

template <class In, class Q, class C>
void mla_rope_write_loop(const MlaRopeWrite::Args& a, int64_t begin, int64_t end) {
  const int64_t N = a.q.dim(1);
  const int64_t L = a.q_lat.dim(2);
  const int64_t R = a.q_pe.dim(2);
  const auto query = [&](int64_t t, int64_t n) {
    Q* out = head_of<Q>(a.q, t, n);
    return Head<In, Q>{head_of<In>(a.q_lat, t, n), head_of<In>(a.q_pe, t, n), out, out + L};
  };
  for (int64_t t = begin; t < end; ++t) {
    const float* table_row = a.table.row<float>(a.positions.as<int32_t>()[t]);
    for (int64_t n = 0; n < N; ++n) {
      const Later later(t, n, N, end);
      write_head(query(t, n), query(later.t, later.n), table_row, L, R, a.style, a.q_scale);
    }
    const int64_t slot = a.slots.as<int64_t>()[t];
    if (slot < 0) continue;
    C* out = slot_data<C>(a.cache, slot);
    const Head<In, C> key = {a.c.row<In>(t), a.k_pe.row<In>(t), out, out + L};
    write_head(key, key, table_row, L, R, a.style, a.kv_scale);
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

void mla_rope_quant_rows(const MlaRopeQuantFp8::Args& a, int64_t begin, int64_t end) {
  if (a.q_pe.format == Format::kBf16) return mla_rope_quant_loop_from<Bf16>(a, begin, end);
  if (a.q_pe.format == Format::kF16) return mla_rope_quant_loop_from<F16>(a, begin, end);
  mla_rope_quant_loop_from<float>(a, begin, end);
}

void mla_rope_write_rows(const MlaRopeWrite::Args& a, int64_t begin, int64_t end) {
  if (a.q_lat.format == Format::kBf16) return loop_to_query<Bf16>(a, begin, end);
  loop_to_query<float>(a, begin, end);
}

}  // namespace fathom::avx512
