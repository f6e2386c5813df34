#include "fathom/kernels/compress/kv_compress/kv_compress_rows.h"
#include "fathom/kernels/norm/inverse_rms_avx512.h"
#include "fathom/kernels/rope/rope/rotate_avx512.h"
#include "fathom/kernels/sparse/hadamard/hadamard_rows.h"

namespace fathom::avx512 {
namespace {

constexpr int kVectors = static_cast<int>(kPoolChannels / kLanes);

/// Sixteen z of an entry, ape added.
template <class A>
__m512 scores_of(const PoolEntry& entry, int64_t c, __mmask16 mask) {
  if (entry.ape == nullptr) return load16(static_cast<const float*>(entry.z) + c, mask);
  return _mm512_add_ps(load16(static_cast<const A*>(entry.z) + c, mask),
                       load16(entry.ape + c, mask));
}

template <class A>
__m512 values_of(const PoolEntry& entry, int64_t c, __mmask16 mask) {
  if (entry.ape == nullptr) return load16(static_cast<const float*>(entry.u) + c, mask);
  return load16(static_cast<const A*>(entry.u) + c, mask);
}

/// Two passes over the entries, of which the second finds z in a cache. The exponential bounds them
/// there; memory bounds the first where entries come from the state of a long block.
template <class A>
void pool(const CompressPool::Args& a, int64_t i, int64_t begin, int64_t count, float* x) {
  const int64_t E = a.gather.dim(1);
  __mmask16 masks[kVectors];
  __m512 largest[kVectors];
  __m512 sum[kVectors];
  __m512 weighted[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    masks[v] = first_lanes(count - v * kLanes);
    largest[v] = _mm512_set1_ps(-__builtin_inff());
    sum[v] = _mm512_setzero_ps();
    weighted[v] = _mm512_setzero_ps();
  }
  for (int64_t e = 0; e < E; ++e) {
    const PoolEntry entry = pool_entry<A>(a, i, e, begin);
    if (entry.z == nullptr) continue;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {  // of two operands one of which is NaN, the second
      largest[v] = _mm512_max_ps(scores_of<A>(entry, v * kLanes, masks[v]), largest[v]);
    }
  }
  for (int64_t e = 0; e < E; ++e) {
    const PoolEntry entry = pool_entry<A>(a, i, e, begin);
    if (entry.z == nullptr) continue;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512 z = scores_of<A>(entry, v * kLanes, masks[v]);
      const __m512 p = exp16(_mm512_sub_ps(z, largest[v]));
      sum[v] = _mm512_add_ps(sum[v], p);
      const __m512 u = values_of<A>(entry, v * kLanes, masks[v]);
      weighted[v] = _mm512_add_ps(weighted[v], _mm512_mul_ps(p, u));
    }
  }
  for (int v = 0; v < kVectors; ++v)
    store16(x + v * kLanes, masks[v], _mm512_div_ps(weighted[v], sum[v]));
}

void round_to_bf16(float* x, int64_t count) {
  for_lanes(count, [&](int64_t i, __mmask16 mask) {
    store16(x + i, mask, rounded_to<Bf16>(load16(x + i, mask)));
  });
}

template <class W>
void norm_row(const W* weight, int64_t D, float eps, float* x) {
  const __m512 r = _mm512_set1_ps(
      inverse_rms_of(D, eps, [&](int64_t d, __mmask16 mask) { return load16(x + d, mask); }));
  for_lanes(D, [&](int64_t i, __mmask16 mask) {
    const __m512 normed = _mm512_mul_ps(load16(x + i, mask), r);
    store16(x + i, mask, _mm512_mul_ps(normed, load16(weight + i, mask)));
  });
}

/// In place; the transform wants memory of its own for rows beyond the registers, which x is.
void transform_row(float* x, int64_t D) {
  const float scale = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(static_cast<float>(D))));
  hadamard_rows(HadamardRows<float>{.x = x,
                                    .x_stride = D,
                                    .y = x,
                                    .y_stride = D,
                                    .count = 1,
                                    .width = D,
                                    .scale = scale,
                                    .room = x});
}

}  // namespace

void pool_channels(const CompressPool::Args& a, int64_t i, int64_t c, int64_t count, float* x) {
  if (a.u_z.format == Format::kBf16) return pool<Bf16>(a, i, c, count, x);
  pool<float>(a, i, c, count, x);
}

void finish_row(const CompressPool::Args& a, const CodedRows& rows, int64_t i, float* x) {
  const int64_t D = a.norm.dim(0);
  const int64_t R = a.table.dim(1);
  const bool bf16 = a.activations == Format::kBf16;
  if (bf16) round_to_bf16(x, D);
  if (a.norm.format == Format::kBf16) {
    norm_row(a.norm.as<Bf16>(), D, a.eps, x);
  } else {
    norm_row(a.norm.as<float>(), D, a.eps, x);
  }
  const float* table_row = a.table.row<float>(a.positions.as<int32_t>()[i]);
  rotate_head(x + D - R, x + D - R, table_row, R, RopeStyle::kInterleaved);
  if (a.transform == CompressTransform::kHadamard) {
    if (bf16) round_to_bf16(x, D);
    transform_row(x, D);
  }
  avx512::store_cache_row(rows, a.slots.as<int64_t>()[i], x);
}

}  // namespace fathom::avx512
