// The scores of 64 keys at a time: lanes are keys, and a dot product is a chain of additions in one
// lane, so that nothing is summed across lanes. A block of keys is decoded and transposed once,
//
//   keys[i][64]   dword i of each key: channel i in float32, or channels 2i and 2i+1 in bf16
//
// for all heads and for up to 16 tokens; queries are decoded once for many blocks. In registers: 4
// heads x 64 keys, with 8 loads (4 of them broadcasts) for 16 vfmadd or vdpbf16ps.
//
// What bounds it is the rate of these instructions. Zen 4, one of each a clock, GFLOP/s of a core
// at 64 heads of 128 channels:
//
//                           16 tokens a tile   1 token, 32 Ki keys
//   vdpbf16ps, e4m3 keys          217                 164
//   vdpbf16ps, e2m1 keys          219                 181
//   vfmadd, float32 keys          109                  79
//
// Packing a block takes a third of the time that the products of one token take.
#include <algorithm>
#include <limits>

#include "fathom/kernels/attn/ragged_attention/attend_avx512.h"
#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/sparse/index_logits/index_logits_call.h"

namespace fathom::avx512 {
namespace {

constexpr int64_t kTileTokens = 16;
constexpr int64_t kChunkKeys = 512;  ///< of a unit of work, a multiple of kBlockKeys
constexpr int64_t kLoadChannels = 64;
constexpr int kTileHeads = 4;
constexpr int kVecs = kBlockKeys / kLanes;

// ---- rows to vectors ----

/// Thirty-two channels of e2m1 from `d` on as bf16: the sixteen values of the group, by their
/// codes.
__m512i load32_e2m1(const IndexRowIn& row, int64_t d) {
  const __m512 values = _mm512_mul_ps(
      _mm512_loadu_ps(internal::kE2m1Values.data()),
      _mm512_set1_ps(to_float(static_cast<const Ue8m0*>(row.scales)[d / kIndexScaleGroup])));
  const __m512i table = _mm512_castsi256_si512(
      _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(values), 16)));
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(
      reinterpret_cast<const __m128i*>(static_cast<const uint8_t*>(row.values) + d / 2)));
  // The low nibble to the even 16 bits, the high one to the odd.
  const __m512i codes = _mm512_or_si512(_mm512_and_si512(bytes, _mm512_set1_epi32(15)),
                                        _mm512_slli_epi32(_mm512_srli_epi32(bytes, 4), 16));
  return _mm512_permutexvar_epi16(codes, table);
}

/// Thirty-two channels as bf16, exactly. Not for f32.
__m512i load32_of(Format format, const IndexRowIn& row, int64_t d) {
  if (format == Format::kBf16) return load32(static_cast<const Bf16*>(row.values) + d, 32);
  if (format == Format::kE4m3) return load32(static_cast<const E4m3*>(row.values) + d, 32);
  return load32_e2m1(row, d);
}

/// Arithmetic in float32: a dword of a row is one channel.
struct F32 {
  static constexpr int64_t kChannels = 1;
  static constexpr int64_t kVectors = 4;  ///< of 64 channels

  /// 64 channels from d on.
  static void load(Format format, const IndexRowIn& row, int64_t d, __m512i (&v)[kVectors]) {
    if (format == Format::kF32) {
      for (int i = 0; i < 4; ++i)
        v[i] = _mm512_loadu_si512(static_cast<const float*>(row.values) + d + i * kLanes);
      return;
    }
    for (int i = 0; i < 2; ++i) {
      const __m512i pairs = load32_of(format, row, d + i * 32);
      for (int half = 0; half < 2; ++half) {
        const __m256i words =
            half == 0 ? _mm512_castsi512_si256(pairs) : _mm512_extracti64x4_epi64(pairs, 1);
        v[2 * i + half] = _mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16);
      }
    }
  }

  static __m512 add_products(__m512 sum, __m512i q, __m512i k) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(q), _mm512_castsi512_ps(k), sum);
  }
};

/// Products of bf16: a dword is two channels, which are added one after the other.
struct Pairs {
  static constexpr int64_t kChannels = 2;
  static constexpr int64_t kVectors = 2;

  /// 64 channels from d on.
  static void load(Format format, const IndexRowIn& row, int64_t d, __m512i (&v)[kVectors]) {
    for (int i = 0; i < kVectors; ++i)
      v[i] = load32_of(format, row, d + i * 32);
  }

  static __m512 add_products(__m512 sum, __m512i q, __m512i k) {
    return _mm512_dpbf16_ps(sum, (__m512bh)q, (__m512bh)k);
  }
};

// ---- memory of a thread ----

struct Scratch {
  uint32_t* keys;     ///< [dwords][64]
  float* key_scales;  ///< [64]
  uint32_t* queries;  ///< [16 tokens][heads][dwords]
};

/// Dwords of a row of float32, the wider of both.
int64_t scratch_dwords(int64_t heads, int64_t width) {
  return kBlockKeys * width + kBlockKeys + kTileTokens * heads * width;
}

Scratch scratch_of(void* workspace, int thread, const IndexLogitsCall& call) {
  const int64_t dwords = scratch_dwords(call.heads, call.width);
  uint32_t* at = static_cast<uint32_t*>(workspace) + thread * dwords;
  return {.keys = at,
          .key_scales = reinterpret_cast<float*>(at + kBlockKeys * call.width),
          .queries = at + kBlockKeys * call.width + kBlockKeys};
}

// ---- work ----

/// Up to sixteen tokens of a request, or one of a tree, whose keys are its own. Without data for
/// keys that no token of it sees.
struct Tile {
  int64_t request;
  int64_t begin, end;     ///< tokens
  int64_t first_key = 0;  ///< that one of them sees
  int64_t end_key = 0;
};

/// Keys [begin, begin + 512) for a tile: logits of these columns.
struct Unit {
  const Tile& tile;
  int64_t begin;
};

/// Blocks of 64 in which a token of the tile sees a key.
int64_t visible_blocks(const Unit& unit) {
  const int64_t begin = std::max(unit.begin, unit.tile.first_key / kBlockKeys * kBlockKeys);
  const int64_t end = std::min(unit.begin + kChunkKeys, unit.tile.end_key);
  return end <= begin ? 0 : (end - begin + kBlockKeys - 1) / kBlockKeys;
}

/// Time of a unit, in passes of a token over a block; packing counts as a quarter of one.
int64_t work_of(const Unit& unit) {
  return 1 + visible_blocks(unit) * (4 * (unit.tile.end - unit.tile.begin) + 1);
}

/// Calls f(unit) for all units of the call, in order. The units of padding tokens have no keys.
template <class F>
void for_units(const IndexLogitsCall& call, F&& f) {
  const int64_t tokens = call.tree_masks == nullptr ? kTileTokens : 1;
  for (int64_t b = 0; b <= call.num_requests; ++b) {
    const int64_t end = b < call.num_requests ? first_token(call, b + 1) : call.num_tokens;
    for (int64_t t = first_token(call, b); t < end; t += tokens) {
      Tile tile{.request = b, .begin = t, .end = std::min(t + tokens, end)};
      tile.first_key = call.columns;
      for (int64_t i = tile.begin; i < tile.end; ++i) {
        if (end_seen(call, i) <= first_seen(call, i)) continue;
        tile.first_key = std::min(tile.first_key, first_seen(call, i));
        tile.end_key = std::max(tile.end_key, end_seen(call, i));
      }
      for (int64_t key = 0; key < call.columns; key += kChunkKeys)
        f(Unit{.tile = tile, .begin = key});
    }
  }
}

// ---- a block of keys ----

/// Where the keys of a block lie: those that some token of the tile sees. Lanes of others repeat
/// one of these, and what comes of them is not stored.
struct BlockRows {
  IndexRowIn at[kBlockKeys];
  int64_t count = 0;  ///< lanes up to the last key that is seen; 0: none
};

void find_rows(const IndexLogitsCall& call, const Tile& tile, int64_t begin, BlockRows& rows) {
  const int64_t first = std::max<int64_t>(tile.first_key - begin, 0);
  rows.count = std::clamp<int64_t>(tile.end_key - begin, 0, kBlockKeys);
  if (first >= rows.count) {
    rows.count = 0;
    return;
  }
  // A division for the block instead of two for each key, which would take as long as decoding it.
  // Keys from `apart` on are rows of a tree: each is found by itself.
  const int64_t apart =
      call.tree_masks == nullptr ? call.columns : tree_token(call, tile.begin).begin;
  IndexRowIn row = key_at(call, tile.request, tile.begin, begin + first);
  const int64_t row_bytes = call.keys.stride(1) * element_bytes(call.keys.format);
  const int64_t scale_bytes =
      call.key_scales.present() ? call.key_scales.stride(1) * element_bytes(call.key_scales.format)
                                : 0;
  int64_t left = call.page_size - (begin + first) % call.page_size;  // rows of the page
  for (int64_t lane = 0; lane < kBlockKeys; ++lane) {
    if (lane > first && lane < rows.count) {
      if (--left > 0 && begin + lane < apart) {
        row.values = static_cast<const std::byte*>(row.values) + row_bytes;
        row.scales = static_cast<const std::byte*>(row.scales) + scale_bytes;
      } else {
        row = key_at(call, tile.request, tile.begin, begin + lane);
        left = call.page_size;
      }
    }
    rows.at[lane] = row;
  }
}

/// Packs a block. Asks for the rows of the next one meanwhile: pages that lie anywhere are no
/// stream that hardware would recognise, and the products leave time for memory to answer.
template <class Math>
void pack_keys(const IndexLogitsCall& call,
               const BlockRows& rows,
               const BlockRows& next,
               const Scratch& s) {
  const int64_t row_bytes = call.keys.dim(2) * element_bytes(call.keys.format);
  for (int64_t lane = 0; lane < next.count; ++lane) {
    const auto* row = static_cast<const char*>(next.at[lane].values);
    for (int64_t byte = 0; byte < row_bytes; byte += 64)
      _mm_prefetch(row + byte, _MM_HINT_T1);
  }
  for (int64_t lane = 0; lane < kBlockKeys; ++lane)
    s.key_scales[lane] = key_scale(call, rows.at[lane]);
  for (int64_t first = 0; first < rows.count; first += kLanes) {
    for (int64_t d = 0; d < call.width; d += kLoadChannels) {
      __m512i parts[Math::kVectors][16];
      for (int64_t i = 0; i < kLanes; ++i) {
        __m512i v[Math::kVectors];
        Math::load(call.keys.format, rows.at[first + i], d, v);
        for (int64_t p = 0; p < Math::kVectors; ++p)
          parts[p][i] = v[p];
      }
      for (int64_t p = 0; p < Math::kVectors; ++p) {
        transpose16(parts[p]);
        uint32_t* to = s.keys + (d / Math::kChannels + p * kLanes) * kBlockKeys + first;
        for (int i = 0; i < kLanes; ++i)
          _mm512_store_si512(to + i * kBlockKeys, parts[p][i]);
      }
    }
  }
}

/// The queries of a tile as rows of dwords.
template <class Math>
void decode_queries(const IndexLogitsCall& call, const Tile& tile, const Scratch& s) {
  const int64_t dwords = call.width / Math::kChannels;
  uint32_t* to = s.queries;
  for (int64_t t = tile.begin; t < tile.end; ++t) {
    for (int64_t h = 0; h < call.heads; ++h, to += dwords) {
      const IndexRowIn row = query_at(call, t, h);
      for (int64_t d = 0; d < call.width; d += kLoadChannels) {
        __m512i v[Math::kVectors];
        Math::load(call.q.format, row, d, v);
        for (int64_t p = 0; p < Math::kVectors; ++p)
          _mm512_store_si512(to + d / Math::kChannels + p * kLanes, v[p]);
      }
    }
  }
}

/// logits += the weighted scores of kHeads heads.
template <class Math, int kHeads>
inline __attribute__((always_inline)) void add_heads(
    const uint32_t* q, int64_t dwords, const uint32_t* keys, const float* w, __m512 (&logits)[4]) {
  __m512 sum[kHeads][kVecs];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      sum[h][v] = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < dwords; ++i) {
    __m512i k[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      k[v] = _mm512_load_si512(keys + i * kBlockKeys + v * kLanes);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const __m512i query = _mm512_set1_epi32(static_cast<int>(q[h * dwords + i]));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v)
        sum[h][v] = Math::add_products(sum[h][v], query, k[v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    const __m512 weight = _mm512_set1_ps(w[h]);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      // The maximum is its second operand where one of them is NaN.
      const __m512 score = _mm512_max_ps(_mm512_setzero_ps(), sum[h][v]);
      logits[v] = _mm512_fmadd_ps(weight, score, logits[v]);
    }
  }
}

/// Columns begin .. begin+63 of token t, whose queries are at q.
template <class Math>
void logits_of_block(
    const IndexLogitsCall& call, const Scratch& s, const uint32_t* q, int64_t t, int64_t begin) {
  const int64_t dwords = call.width / Math::kChannels;
  const float* w = call.w.row<const float>(t);
  __m512 logits[kVecs];
  for (int v = 0; v < kVecs; ++v)
    logits[v] = _mm512_setzero_ps();
  int64_t h = 0;
  for (; h + kTileHeads <= call.heads; h += kTileHeads)
    add_heads<Math, kTileHeads>(q + h * dwords, dwords, s.keys, w + h, logits);
  for (; h < call.heads; ++h)
    add_heads<Math, 1>(q + h * dwords, dwords, s.keys, w + h, logits);
  float* out = call.logits.row<float>(t) + begin;
  const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int v = 0; v < kVecs; ++v) {
    const int64_t key = begin + v * kLanes;
    const auto seen = static_cast<__mmask16>(first_lanes(end_seen(call, t) - key) &
                                             ~first_lanes(first_seen(call, t) - key));
    const __m512 scaled = _mm512_mul_ps(logits[v], _mm512_load_ps(s.key_scales + v * kLanes));
    _mm512_mask_storeu_ps(out + v * kLanes, first_lanes(call.columns - key),
                          _mm512_mask_mov_ps(hidden, seen, scaled));
  }
}

void hide(const IndexLogitsCall& call, int64_t t, int64_t begin, int64_t end) {
  float* out = call.logits.row<float>(t);
  std::fill(out + begin, out + end, -std::numeric_limits<float>::infinity());
}

/// decoded: the first token whose queries are in the scratch, -1 for none.
template <class Math>
void run_unit(const IndexLogitsCall& call, const Unit& unit, const Scratch& s, int64_t& decoded) {
  const Tile& tile = unit.tile;
  const int64_t query_dwords = call.heads * (call.width / Math::kChannels);
  const int64_t unit_end = std::min(unit.begin + kChunkKeys, call.columns);
  BlockRows rows[2];
  find_rows(call, tile, unit.begin, rows[0]);
  for (int64_t begin = unit.begin; begin < unit_end; begin += kBlockKeys) {
    const int64_t end = std::min(begin + kBlockKeys, unit_end);
    const BlockRows& here = rows[begin / kBlockKeys % 2];
    BlockRows& next = rows[1 - begin / kBlockKeys % 2];
    find_rows(call, tile, end, next);
    if (here.count > 0) pack_keys<Math>(call, here, next, s);
    if (here.count > 0 && decoded != tile.begin) {
      decode_queries<Math>(call, tile, s);
      decoded = tile.begin;
    }
    for (int64_t t = tile.begin; t < tile.end; ++t) {
      if (begin < end_seen(call, t) && end > first_seen(call, t) &&
          first_seen(call, t) < end_seen(call, t)) {
        logits_of_block<Math>(call, s, s.queries + (t - tile.begin) * query_dwords, t, begin);
      } else {
        hide(call, t, begin, end);
      }
    }
  }
}

/// Work below which the calling thread is alone: some microseconds.
constexpr int64_t kSerialWork = 8;

template <class Math>
void index_logits(Exec& ex, const IndexLogitsCall& call) {
  int64_t total = 0;
  for_units(call, [&](const Unit& unit) { total += work_of(unit); });
  // A thread has the units that begin in its part of the work. No logit is made of two of them.
  const auto run_part = [&](int thread, int num_threads) {
    const Scratch s = scratch_of(ex.workspace, thread, call);
    int64_t decoded = -1;
    int64_t before = 0;
    for_units(call, [&](const Unit& unit) {
      if (before * num_threads / total == thread) run_unit<Math>(call, unit, s, decoded);
      before += work_of(unit);
    });
  };
  if (total <= kSerialWork) {
    if (total > 0) run_part(0, 1);
    return;
  }
  ex.pool->run(run_part);
}

}  // namespace

int64_t index_logits_bytes(int64_t heads, int64_t width) {
  return 4 * scratch_dwords(heads, width);
}

void index_logits_f32(Exec& ex, const IndexLogitsCall& call) {
  index_logits<F32>(ex, call);
}

void index_logits_bf16(Exec& ex, const IndexLogitsCall& call) {
  index_logits<Pairs>(ex, call);
}

}  // namespace fathom::avx512
