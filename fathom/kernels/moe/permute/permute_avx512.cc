#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/moe/permute/permute_rows.h"

namespace fathom::avx512 {
namespace {

/// Eight vectors of columns at once, so that the additions of one row do not wait for each other
/// and whole lines of every row are read in turn.
constexpr int kVectors = 8;
constexpr int64_t kStep = kVectors * kLanes;

/// Weights of a token that are at hand as floats; the slots of a longer list go in pieces.
constexpr int64_t kSlotsAtOnce = 64;

/// Lanes of vector i of `left` columns, of which kFull says that no vector lacks any.
template <bool kFull>
__mmask16 lanes(int64_t left, int i) {
  return kFull ? __mmask16{0xFFFF} : first_lanes(left - i * kLanes);
}

/// The columns two steps on of a row: by the time they are needed, memory has answered.
template <class T>
void ask_for_columns(const T* row) {
  for (int64_t i = 2 * kStep; i < 3 * kStep; i += 64 / static_cast<int64_t>(sizeof(T)))
    prefetch_to_read(row + i);
}

/// Multiplied and added in two roundings, as the portable variant does, so that both give the same
/// bits.
template <bool kFull, class X>
void add_row(const X* x, float weight, int64_t left, __m512 (&sum)[kVectors]) {
  ask_for_columns(x);
  const __m512 w = _mm512_set1_ps(weight);
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    const __m512 v = load16(x + i * kLanes, lanes<kFull>(left, i));
    sum[i] = _mm512_add_ps(sum[i], _mm512_mul_ps(w, v));
  }
}

template <bool kFull, class Y>
void store_row(Y* y, int64_t left, const __m512 (&sum)[kVectors]) {
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i)
    store16(y + i * kLanes, lanes<kFull>(left, i), sum[i]);
}

template <class Add>
void load_row(const Add* add, int64_t left, __m512 (&sum)[kVectors]) {
  for (int i = 0; i < kVectors; ++i)
    sum[i] = load16(add + i * kLanes, first_lanes(left - i * kLanes));
}

void load_start(const View& add, int64_t t, int64_t d, int64_t left, __m512 (&sum)[kVectors]) {
  if (add.format == Format::kBf16) {
    load_row(static_cast<const Bf16*>(add.data) + t * add.strides[0] + d, left, sum);
  } else if (add.format == Format::kF32) {
    load_row(static_cast<const float*>(add.data) + t * add.strides[0] + d, left, sum);
  } else if (add.format == Format::kF16) {
    load_row(static_cast<const F16*>(add.data) + t * add.strides[0] + d, left, sum);
  } else {
    for (int i = 0; i < kVectors; ++i)
      sum[i] = _mm512_setzero_ps();
  }
}

template <class W>
float first_of(const W* p) {
  return _mm512_cvtss_f32(load16(p, first_lanes(1)));
}

/// Weight (t, k); 1 where there are none.
float load_weight(const View& weights, int64_t t, int64_t k) {
  const int64_t at = t * weights.strides[0] + k;
  if (weights.format == Format::kF32) return static_cast<const float*>(weights.data)[at];
  if (weights.format == Format::kBf16) return first_of(static_cast<const Bf16*>(weights.data) + at);
  if (weights.format == Format::kF16) return first_of(static_cast<const F16*>(weights.data) + at);
  return 1.0f;
}

struct Columns {
  int64_t begin, end;
};

/// The slots of a token that have a row, and their weights.
template <class X>
struct Slots {
  const X* row[kSlotsAtOnce];
  float weight[kSlotsAtOnce];
  int64_t count = 0;

  /// Slots [begin, end) of token t, at most kSlotsAtOnce.
  Slots(const UnpermuteWeightedSum::Args& a, int64_t t, int64_t begin, int64_t end) {
    const int32_t* dest = static_cast<const int32_t*>(a.dest.data) + t * a.dest.strides[0];
    for (int64_t k = begin; k < end; ++k) {
      if (dest[k] < 0) continue;
      row[count] = static_cast<const X*>(a.x.data) + dest[k] * a.x.strides[0];
      weight[count++] = load_weight(a.weights, t, k);
    }
  }
};

/// Columns [d, d + left) or a step of them.
template <bool kFull, class X, class Y>
void unpermute_step(const UnpermuteWeightedSum::Args& a,
                    int64_t t,
                    const Slots<X>& first,
                    int64_t d,
                    int64_t left) {
  __m512 sum[kVectors];
  load_start(a.add, t, d, left, sum);
  for (int64_t i = 0; i < first.count; ++i)
    add_row<kFull>(first.row[i] + d, first.weight[i], left, sum);
  for (int64_t k = kSlotsAtOnce; k < a.dest.dims[1]; k += kSlotsAtOnce) {
    const int64_t more = a.dest.dims[1] - k;
    const Slots<X> slots(a, t, k, k + (more < kSlotsAtOnce ? more : kSlotsAtOnce));
    for (int64_t i = 0; i < slots.count; ++i)
      add_row<kFull>(slots.row[i] + d, slots.weight[i], left, sum);
  }
  Y* y = static_cast<Y*>(a.y.data) + t * a.y.strides[0];
  store_row<kFull>(y + d, left, sum);
}

template <class X, class Y>
void unpermute_row(const UnpermuteWeightedSum::Args& a, int64_t t, Columns columns) {
  const int64_t top_k = a.dest.dims[1];
  const Slots<X> first(a, t, 0, top_k < kSlotsAtOnce ? top_k : kSlotsAtOnce);
  int64_t d = columns.begin;
  for (; d + kStep <= columns.end; d += kStep)
    unpermute_step<true, X, Y>(a, t, first, d, kStep);
  if (d < columns.end) unpermute_step<false, X, Y>(a, t, first, d, columns.end - d);
}

template <class X, class Y>
void unpermute(const UnpermuteWeightedSum::Args& a, int64_t begin, int64_t end, Columns columns) {
  for (int64_t t = begin; t < end; ++t)
    unpermute_row<X, Y>(a, t, columns);
}

template <bool kFull, class X, class Y>
void sum_step(const TopkSum::Args& a, int64_t t, int64_t d, int64_t left) {
  const X* x = static_cast<const X*>(a.x.data) + t * a.x.strides[0] + d;
  __m512 sum[kVectors];
  for (__m512& s : sum)
    s = _mm512_setzero_ps();
  for (int64_t k = 0; k < a.x.dims[1]; ++k)
    add_row<kFull>(x + k * a.x.strides[1], 1.0f, left, sum);
  for (__m512& s : sum)
    s = _mm512_mul_ps(s, _mm512_set1_ps(a.factor));
  store_row<kFull>(static_cast<Y*>(a.y.data) + t * a.y.strides[0] + d, left, sum);
}

template <class X, class Y>
void sum_rows(const TopkSum::Args& a, int64_t begin, int64_t end) {
  const int64_t D = a.y.dims[1];
  for (int64_t t = begin; t < end; ++t) {
    int64_t d = 0;
    for (; d + kStep <= D; d += kStep)
      sum_step<true, X, Y>(a, t, d, kStep);
    if (d < D) sum_step<false, X, Y>(a, t, d, D - d);
  }
}

/// Calls f(T{}) with the element type of a format: f32, bf16 or f16. (That of elements.h would be
/// compiled for AVX-512 here.)
template <class F>
void with_format(Format format, F&& f) {
  if (format == Format::kF32) return f(float{});
  if (format == Format::kBf16) return f(Bf16{});
  f(F16{});
}

template <class F>
void with_formats(Format x, Format y, F&& f) {
  with_format(x, [&]<class X>(X) { with_format(y, [&]<class Y>(Y) { f(X{}, Y{}); }); });
}

}  // namespace

void unpermute_rows(const UnpermuteWeightedSum::Args& a,
                    int64_t begin,
                    int64_t end,
                    int64_t col_begin,
                    int64_t col_end) {
  const Columns columns{col_begin, col_end};
  with_formats(a.x.format, a.y.format,
               [&]<class X, class Y>(X, Y) { unpermute<X, Y>(a, begin, end, columns); });
}

void topk_sum_rows(const TopkSum::Args& a, int64_t begin, int64_t end) {
  with_formats(a.x.format, a.y.format,
               [&]<class X, class Y>(X, Y) { sum_rows<X, Y>(a, begin, end); });
}

}  // namespace fathom::avx512
