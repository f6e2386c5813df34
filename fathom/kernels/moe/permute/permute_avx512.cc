#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/moe/permute/permute_rows.h"

namespace fathom::avx512 {
namespace {

/// Four vectors of columns at once, so that the additions of one row do not wait for each other.
constexpr int kVectors = 4;
constexpr int64_t kStep = kVectors * kLanes;

/// Multiplied and added in two roundings, as the portable variant does, so that both give the same
/// bits.
template <class X>
void add_row(const X* x, float weight, int64_t left, __m512 (&sum)[kVectors]) {
  const __m512 w = _mm512_set1_ps(weight);
  for (int i = 0; i < kVectors; ++i) {
    const __m512 v = load16(x + i * kLanes, first_lanes(left - i * kLanes));
    sum[i] = _mm512_add_ps(sum[i], _mm512_mul_ps(w, v));
  }
}

template <class Y>
void store_row(Y* y, int64_t left, const __m512 (&sum)[kVectors]) {
  for (int i = 0; i < kVectors; ++i)
    store16(y + i * kLanes, first_lanes(left - i * kLanes), sum[i]);
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
  } else {
    for (int i = 0; i < kVectors; ++i)
      sum[i] = _mm512_setzero_ps();
  }
}

struct Columns {
  int64_t begin, end;
};

template <class X, class Y>
void unpermute_row(const UnpermuteWeightedSum::Args& a, int64_t t, Columns columns) {
  const int64_t top_k = a.dest.dims[1];
  const int32_t* dest = static_cast<const int32_t*>(a.dest.data) + t * a.dest.strides[0];
  const bool weighted = a.weights.format != Format::kNone;
  const float* weights =
      weighted ? static_cast<const float*>(a.weights.data) + t * a.weights.strides[0] : nullptr;
  Y* y = static_cast<Y*>(a.y.data) + t * a.y.strides[0];
  for (int64_t d = columns.begin; d < columns.end; d += kStep) {
    const int64_t left = columns.end - d;
    __m512 sum[kVectors];
    load_start(a.add, t, d, left, sum);
    for (int64_t k = 0; k < top_k; ++k) {
      if (dest[k] < 0) continue;
      const X* x = static_cast<const X*>(a.x.data) + dest[k] * a.x.strides[0] + d;
      add_row(x, weighted ? weights[k] : 1.0f, left, sum);
    }
    store_row(y + d, left, sum);
  }
}

template <class X, class Y>
void unpermute(const UnpermuteWeightedSum::Args& a, int64_t begin, int64_t end, Columns columns) {
  for (int64_t t = begin; t < end; ++t)
    unpermute_row<X, Y>(a, t, columns);
}

template <class X, class Y>
void sum_rows(const TopkSum::Args& a, int64_t begin, int64_t end) {
  const int64_t D = a.y.dims[1];
  const __m512 factor = _mm512_set1_ps(a.factor);
  for (int64_t t = begin; t < end; ++t) {
    const X* x = static_cast<const X*>(a.x.data) + t * a.x.strides[0];
    Y* y = static_cast<Y*>(a.y.data) + t * a.y.strides[0];
    for (int64_t d = 0; d < D; d += kStep) {
      __m512 sum[kVectors] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                              _mm512_setzero_ps()};
      for (int64_t k = 0; k < a.x.dims[1]; ++k)
        add_row(x + k * a.x.strides[1] + d, 1.0f, D - d, sum);
      for (__m512& s : sum)
        s = _mm512_mul_ps(s, factor);
      store_row(y + d, D - d, sum);
    }
  }
}

}  // namespace

void unpermute_rows(const UnpermuteWeightedSum::Args& a,
                    int64_t begin,
                    int64_t end,
                    int64_t col_begin,
                    int64_t col_end) {
  const Columns columns{col_begin, col_end};
  const bool to_bf16 = a.y.format == Format::kBf16;
  if (a.x.format == Format::kBf16) {
    return to_bf16 ? unpermute<Bf16, Bf16>(a, begin, end, columns)
                   : unpermute<Bf16, float>(a, begin, end, columns);
  }
  return to_bf16 ? unpermute<float, Bf16>(a, begin, end, columns)
                 : unpermute<float, float>(a, begin, end, columns);
}

void topk_sum_rows(const TopkSum::Args& a, int64_t begin, int64_t end) {
  const bool to_bf16 = a.y.format == Format::kBf16;
  if (a.x.format == Format::kBf16) {
    return to_bf16 ? sum_rows<Bf16, Bf16>(a, begin, end) : sum_rows<Bf16, float>(a, begin, end);
  }
  return to_bf16 ? sum_rows<float, Bf16>(a, begin, end) : sum_rows<float, float>(a, begin, end);
}

}  // namespace fathom::avx512
