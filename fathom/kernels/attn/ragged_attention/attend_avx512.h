// Online-softmax attention of many query rows over one block of 64 keys, with vdpbf16ps. Used by
// the prefill and the decode kernel, which differ in where keys come from. Included by _avx512.cc
// files only.
//
// A vdpbf16ps adds the products of two adjacent bf16 to each of sixteen float32 lanes. For the
// scores, lanes are keys and the pair runs along the width of the key; for the values, lanes are
// value columns and the pair is two keys. Packing a block for both costs about as much as two query
// rows, and is shared by all rows that see it:
//
//   keys    [2 halves][pairs][32 keys]        dword = (key[2p], key[2p+1])
//   values  [padded_L/32][32 key pairs][32]   dword = (value of key 2i, value of key 2i+1)
//
// A weight enters as two bf16, its truncation and the rest: 16 bits of it. One bf16 would do for
// the squared error (diff 2.5e-6 of the 5e-6 allowed), but where values cancel single outputs miss
// the bound of 1e-3 (up to twice it, one element in 1,000; normal data, few keys). It costs a
// quarter of the kernel's time.
//
// Each result has one float32 accumulator, and its terms come in the order of p and of keys. What a
// row gets from a key that it does not see is an added zero. So a row's bits depend on its own keys
// alone. Rows advance eight at a time, which is as many as the registers hold and says nothing
// about results.
#pragma once

#include "fathom/kernels/core/elements_avx512.h"

namespace fathom::avx512 {

inline constexpr int64_t kBlockKeys = 64;
inline constexpr int kTileRows = 8;

/// Sizes and memory of the state of up to `rows` query rows, and of one packed block.
struct AttendScratch {
  int64_t rows;
  int64_t pairs;     ///< ceil(D / 2)
  int64_t padded_L;  ///< width of the values, a multiple of 32

  uint32_t* keys = nullptr;
  uint32_t* values = nullptr;
  uint32_t* queries = nullptr;  ///< [rows][pairs], zero beyond D
  float* o = nullptr;           ///< [rows][padded_L], not normalised
  float* sum = nullptr;         ///< [rows][16], partial sums of the weights
  float* max = nullptr;         ///< [rows]
  int32_t* seen = nullptr;      ///< [rows], keys that the row sees, from the first of the request
  int32_t* hidden = nullptr;    ///< [rows], keys before these that it does not see

  AttendScratch(int64_t num_rows, int64_t D, int64_t L)
      : rows(num_rows), pairs((D + 1) / 2), padded_L((L + 31) / 32 * 32) {}

  int64_t bytes() const {
    return 4 * (kBlockKeys * pairs + kBlockKeys / 2 * padded_L +
                padded_rows() * (pairs16() + padded_L) + padded_rows() * (kLanes + 3));
  }

  /// Hands out bytes() bytes that start on a 64-byte boundary.
  void place(void* memory) {
    auto* at = static_cast<uint32_t*>(memory);
    const auto take = [&](int64_t dwords) {
      uint32_t* begin = at;
      at += dwords;
      return begin;
    };
    keys = take(kBlockKeys * pairs);
    values = take(kBlockKeys / 2 * padded_L);
    queries = take(padded_rows() * pairs16());
    o = reinterpret_cast<float*>(take(padded_rows() * padded_L));
    sum = reinterpret_cast<float*>(take(padded_rows() * kLanes));
    max = reinterpret_cast<float*>(take(padded_rows()));
    seen = reinterpret_cast<int32_t*>(take(padded_rows()));
    hidden = reinterpret_cast<int32_t*>(take(padded_rows()));
  }

 private:
  int64_t padded_rows() const { return (rows + 15) / 16 * 16; }

  int64_t pairs16() const { return (pairs + 15) / 16 * 16; }
};

// ---- elements of a key, 32 at a time as bf16; past `count` they are zero and are not read ----

inline __mmask32 first_32(int64_t count) {
  return count >= 32 ? 0xFFFFFFFFu : (1u << count) - 1u;
}

inline __m512i load32(const Bf16* p, int64_t count) {
  return _mm512_maskz_loadu_epi16(first_32(count), p);
}

/// The bf16 code of each of the 128 magnitudes of E4M3: a bf16 holds them all exactly.
struct E4m3ToBf16 {
  uint16_t codes[128];

  constexpr E4m3ToBf16() : codes() {
    for (unsigned i = 0; i < 128; ++i) {
      codes[i] = static_cast<uint16_t>(float_bits(internal::kE4m3Values[i]) >> 16);
    }
  }
};

alignas(64) inline constexpr E4m3ToBf16 kE4m3ToBf16;

inline __m512i load32(const E4m3* p, int64_t count) {
  const __m512i code = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(first_32(count), p));
  const uint16_t* table = kE4m3ToBf16.codes;
  const __m512i below64 =
      _mm512_permutex2var_epi16(_mm512_load_si512(table), code, _mm512_load_si512(table + 32));
  const __m512i from64 =
      _mm512_permutex2var_epi16(_mm512_load_si512(table + 64), code, _mm512_load_si512(table + 96));
  const __mmask32 high = _mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40));
  const __m512i magnitude = _mm512_mask_mov_epi16(below64, high, from64);
  const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(code, _mm512_set1_epi16(0x80)), 8);
  return _mm512_or_si512(magnitude, sign);
}

/// Transposes sixteen vectors of sixteen dwords.
inline void transpose16(__m512i (&v)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // v[4j + c] now holds, in its 128-bit part b, column 4b + c of rows 4j .. 4j+3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xEE);
    const __m512i low23 = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xEE);
    t[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    t[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    v[i] = t[i];
}

/// Where the keys or values of a block lie.
template <class Element>
struct KeyBlock {
  const Element* at[kBlockKeys];
  int64_t count = 0;
};

/// Packs keys of width D for the scores. Lanes of missing keys hold anything: the scores they give
/// are masked out. Asks for the keys of the next block meanwhile: rows of pages that lie anywhere
/// are no stream that hardware would recognise, and the products leave time for memory to answer.
template <class Element>
void pack_keys(const AttendScratch& s,
               const KeyBlock<Element>& key,
               const KeyBlock<Element>& next,
               int64_t D) {
  for (int64_t first = 0; first < key.count; first += kLanes) {
    uint32_t* to = s.keys + first / 32 * s.pairs * 32 + first % 32;
    for (int64_t d = 0; d < D; d += 32) {
      __m512i v[16];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t j = first + i;
        v[i] = load32(key.at[j < key.count ? j : key.count - 1] + d, D - d);
        if (j < next.count) _mm_prefetch(next.at[j] + d, _MM_HINT_T1);
      }
      transpose16(v);
      const int64_t pairs = s.pairs - d / 2 < 16 ? s.pairs - d / 2 : 16;
      for (int64_t p = 0; p < pairs; ++p)
        _mm512_store_si512(to + (d / 2 + p) * 32, v[p]);
    }
  }
}

/// Packs values of width L. An odd last key gets zeros for its partner.
template <class Element>
void pack_values(const AttendScratch& s, const KeyBlock<Element>& value, int64_t L) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t j = 0; j < value.count; j += 2) {
    const bool has_partner = j + 1 < value.count;
    for (int64_t d = 0; d < s.padded_L; d += 32) {
      const int64_t left = L - d > 0 ? L - d : 0;
      const __m512i a = load32(value.at[j] + d, left);
      const __m512i b = has_partner ? load32(value.at[j + 1] + d, left) : _mm512_setzero_si512();
      uint32_t* to = s.values + (d / 32 * (kBlockKeys / 2) + j / 2) * 32;
      _mm512_store_si512(to, _mm512_permutex2var_epi16(a, low, b));
      _mm512_store_si512(to + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

/// Copies the elements [begin, begin + count) of query row `row`, zeros behind them; begin is even.
template <class Element>
inline void load_query(
    const AttendScratch& s, int64_t row, const Element* q, int64_t begin, int64_t count) {
  uint32_t* to = s.queries + row * s.pairs + begin / 2;
  for (int64_t d = 0; d < count; d += 32) {
    const int64_t pairs = s.pairs - (begin + d) / 2;
    _mm512_mask_storeu_epi32(to + d / 2, first_lanes(pairs), load32(q + d, count - d));
  }
}

/// State of a row that has seen nothing.
inline void reset_rows(const AttendScratch& s, int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; ++row) {
    s.max[row] = -__builtin_inff();
    s.hidden[row] = 0;
    _mm512_store_ps(s.sum + row * kLanes, _mm512_setzero_ps());
    for (int64_t d = 0; d < s.padded_L; d += kLanes) {
      _mm512_store_ps(s.o + row * s.padded_L + d, _mm512_setzero_ps());
    }
  }
}

inline __m512bh as_bf16(__m512i v) {
  return reinterpret_cast<__m512bh>(v);
}

inline __m512bh splat_pair(uint32_t bits) {
  return as_bf16(_mm512_set1_epi32(static_cast<int>(bits)));
}

/// scores[r][0:32] = q_r . key for R rows and half a block.
template <int R>
void score_tile(const uint32_t* q, int64_t pairs, const uint32_t* keys, float* scores) {
  __m512 acc[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    acc[r][0] = acc[r][1] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p) {
    const __m512bh k0 = as_bf16(_mm512_load_si512(keys + p * 32));
    const __m512bh k1 = as_bf16(_mm512_load_si512(keys + p * 32 + 16));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512bh pair = splat_pair(q[r * pairs + p]);
      acc[r][0] = _mm512_dpbf16_ps(acc[r][0], pair, k0);
      acc[r][1] = _mm512_dpbf16_ps(acc[r][1], pair, k1);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    _mm512_store_ps(scores + r * kBlockKeys, acc[r][0]);
    _mm512_store_ps(scores + r * kBlockKeys + kLanes, acc[r][1]);
  }
}

/// Weights of eight rows and one block as bf16 pairs of adjacent keys: weight = high + low.
struct TileWeights {
  alignas(64) uint32_t high[kTileRows][kBlockKeys / 2];
  alignas(64) uint32_t low[kTileRows][kBlockKeys / 2];
};

/// o_r = o_r * rescale_r + sum over key pairs of weights * values, for R rows and all columns.
template <int R>
void value_tile(const AttendScratch& s,
                const TileWeights& w,
                const float* rescale,
                int64_t key_pairs,
                float* o) {
  for (int64_t d = 0; d < s.padded_L; d += 32) {
    const uint32_t* values = s.values + d * (kBlockKeys / 2);
    __m512 acc[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 factor = _mm512_set1_ps(rescale[r]);
      acc[r][0] = _mm512_mul_ps(_mm512_load_ps(o + r * s.padded_L + d), factor);
      acc[r][1] = _mm512_mul_ps(_mm512_load_ps(o + r * s.padded_L + d + kLanes), factor);
    }
    for (int64_t i = 0; i < key_pairs; ++i) {
      const __m512bh v0 = as_bf16(_mm512_load_si512(values + i * 32));
      const __m512bh v1 = as_bf16(_mm512_load_si512(values + i * 32 + 16));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512bh high = splat_pair(w.high[r][i]);
        const __m512bh low = splat_pair(w.low[r][i]);
        acc[r][0] = _mm512_dpbf16_ps(acc[r][0], high, v0);
        acc[r][1] = _mm512_dpbf16_ps(acc[r][1], high, v1);
        acc[r][0] = _mm512_dpbf16_ps(acc[r][0], low, v0);
        acc[r][1] = _mm512_dpbf16_ps(acc[r][1], low, v1);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      _mm512_store_ps(o + r * s.padded_L + d, acc[r][0]);
      _mm512_store_ps(o + r * s.padded_L + d + kLanes, acc[r][1]);
    }
  }
}

inline __m512 truncate_to_bf16(__m512 v) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(-0x10000)));
}

/// Sixteen and sixteen floats, rounded to bf16, in order: those of `low` first.
inline __m512i bf16_pairs(__m512 high, __m512 low) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// The keys [hidden, seen) of a block among the sixteen from key i on.
inline __mmask16 visible_lanes(int64_t hidden, int64_t seen, int64_t i) {
  return static_cast<__mmask16>(first_lanes(seen - i) & ~first_lanes(hidden - i));
}

/// Turns the scores of R rows into weights e^(scale * score - max), updates maxima and sums,
/// and gives the factor by which older sums of the values shrink. Keys [hidden[r], seen[r]) of the
/// block are visible.
template <int R>
void softmax_tile(const float* scores,
                  float scale,
                  const int64_t* hidden,
                  const int64_t* seen,
                  float* max,
                  float* sum,
                  TileWeights& weights,
                  float* rescale) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  alignas(64) float old_max[kLanes] = {};
  alignas(64) float reference[kLanes] = {};
  for (int r = 0; r < R; ++r) {
    __m512 most = lowest;
    for (int64_t i = 0; i < kBlockKeys; i += kLanes) {
      const __mmask16 mask = visible_lanes(hidden[r], seen[r], i);
      const __m512 z = _mm512_mul_ps(_mm512_maskz_load_ps(mask, scores + r * kBlockKeys + i),
                                     _mm512_set1_ps(scale));
      most = _mm512_mask_max_ps(most, mask, most, z);
    }
    const float block_max = _mm512_reduce_max_ps(most);
    old_max[r] = max[r];
    max[r] = block_max > max[r] ? block_max : max[r];
    // A maximum of -inf means that no key has any weight yet; e^(-inf - 0) is 0 as it should be.
    reference[r] = max[r] == -__builtin_inff() ? 0.0f : max[r];
  }
  const __m512 factor = exp16(_mm512_sub_ps(_mm512_load_ps(old_max), _mm512_load_ps(reference)));
  _mm512_store_ps(rescale, factor);
  for (int r = 0; r < R; ++r) {
    __m512 w[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __mmask16 mask = visible_lanes(hidden[r], seen[r], i * kLanes);
      const __m512 z = _mm512_mul_ps(
          _mm512_maskz_load_ps(mask, scores + r * kBlockKeys + i * kLanes), _mm512_set1_ps(scale));
      w[i] = _mm512_maskz_mov_ps(mask, exp16(_mm512_sub_ps(z, _mm512_set1_ps(reference[r]))));
    }
    const __m512 added = _mm512_add_ps(_mm512_add_ps(w[0], w[1]), _mm512_add_ps(w[2], w[3]));
    const __m512 shrunk =
        _mm512_mul_ps(_mm512_load_ps(sum + r * kLanes), _mm512_set1_ps(rescale[r]));
    _mm512_store_ps(sum + r * kLanes, _mm512_add_ps(shrunk, added));
    for (int i = 0; i < 4; i += 2) {
      const __m512 high0 = truncate_to_bf16(w[i]);
      const __m512 high1 = truncate_to_bf16(w[i + 1]);
      const __m512 low0 = _mm512_sub_ps(w[i], high0);
      const __m512 low1 = _mm512_sub_ps(w[i + 1], high1);
      _mm512_store_si512(weights.high[r] + i * 8, bf16_pairs(high1, high0));
      _mm512_store_si512(weights.low[r] + i * 8, bf16_pairs(low1, low0));
    }
  }
}

/// Adds the packed block, whose first key is key `begin` of the request, to rows row .. row+R-1.
template <int R>
void attend_tile(const AttendScratch& s, int64_t row, int64_t begin, float scale) {
  const auto within = [](int64_t keys) {
    return keys < 0 ? 0 : (keys > kBlockKeys ? kBlockKeys : keys);
  };
  int64_t seen[R];
  int64_t hidden[R];
  int64_t most = 0;
  bool any = false;
  for (int r = 0; r < R; ++r) {
    seen[r] = within(s.seen[row + r] - begin);
    hidden[r] = within(s.hidden[row + r] - begin);
    most = seen[r] > most ? seen[r] : most;
    any |= hidden[r] < seen[r];
  }
  if (!any) return;
  alignas(64) float scores[R * kBlockKeys];
  TileWeights weights;
  alignas(64) float rescale[kLanes];
  const uint32_t* q = s.queries + row * s.pairs;
  score_tile<R>(q, s.pairs, s.keys, scores);
  if (most > 32) score_tile<R>(q, s.pairs, s.keys + s.pairs * 32, scores + 32);
  softmax_tile<R>(scores, scale, hidden, seen, s.max + row, s.sum + row * kLanes, weights, rescale);
  value_tile<R>(s, weights, rescale, (most + 1) / 2, s.o + row * s.padded_L);
}

/// Adds the packed block to rows 0 .. num_rows-1.
inline void attend_block(const AttendScratch& s, int64_t num_rows, int64_t begin, float scale) {
  int64_t row = 0;
  for (; row + 8 <= num_rows; row += 8)
    attend_tile<8>(s, row, begin, scale);
  if (row + 4 <= num_rows) {
    attend_tile<4>(s, row, begin, scale);
    row += 4;
  }
  if (row + 2 <= num_rows) {
    attend_tile<2>(s, row, begin, scale);
    row += 2;
  }
  if (row < num_rows) attend_tile<1>(s, row, begin, scale);
}

/// The sum of sixteen lanes, folded in halves.
inline float sum_lanes(const float* lanes) {
  alignas(64) float p[kLanes];
  _mm512_store_ps(p, _mm512_load_ps(lanes));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i)
      p[i] += p[i + half];
  }
  return p[0];
}

/// out = o * factor for one row of L columns. Adding +0 turns -0, whose sign could depend on keys
/// that the row does not see, into +0.
template <class Out>
void store_row(const float* o, float factor, int64_t L, Out* out) {
  for (int64_t d = 0; d < L; d += kLanes) {
    const __m512 v = _mm512_mul_ps(_mm512_load_ps(o + d), _mm512_set1_ps(factor));
    store16(out + d, first_lanes(L - d), _mm512_add_ps(v, _mm512_setzero_ps()));
  }
}

}  // namespace fathom::avx512
