// How a call on rows of 128 codes is cut into blocks on every GPU: some tokens of a request, and
// some tiles of keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/kernels/sparse/index_logits/index_logits_call.h"
#include "fathom/kernels/sparse/index_logits/index_logits_device.cuh"

namespace fathom::index_logits {

inline constexpr int kThreads = cuda::kWarpgroup;
inline constexpr int kBlocksOfSm = 4;
inline constexpr int kMostHeads = 64;
inline constexpr int kChannels = 128;
inline constexpr int kMostQueries = 4;  ///< of a block
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

/// Few enough that the last blocks do not run alone for long, enough that queries are laid out
/// rarely.
inline constexpr int kMostTiles = 16;  // of a block

/// Rows of bytes with two axes before them whose strides have 32 bits.
struct NearRows {
  const std::byte* data;
  uint32_t outer;
  uint32_t inner;

  __device__ __forceinline__ const std::byte* at(int i, int j) const {
    return data + uint64_t{outer} * static_cast<uint32_t>(i) +
           uint64_t{inner} * static_cast<uint32_t>(j);
  }
};

/// Pieces of a call: blocks have so many queries and tiles, token blocks change fastest.
struct Cuts {
  NearRows keys, key_scales;
  int queries;
  int tiles;
  cuda::FastDivide token_blocks;
  bool read_once;  ///< keys
};

inline ByteRows byte_rows(const View& v) {
  if (!v.present()) return {};
  const int64_t bytes = element_bytes(v.format);
  return {v.as<const std::byte>(), v.stride(0) * bytes, v.stride(1) * bytes};
}

inline Call device_call(const IndexLogitsCall& call) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool paged = call.block_table != nullptr;
  const int64_t rows = call.keys.dim(0) == 0 ? 0 : call.keys.dim(1);
  const int64_t room = paged ? call.block_table->dim(1) * rows : rows;
  return {.q = byte_rows(call.q),
          .q_scales = byte_rows(call.q_scales),
          .w = cuda::rows_of<const float>(call.w),
          .T = static_cast<int>(call.num_tokens),
          .H = static_cast<int>(call.heads),
          .D = static_cast<int>(call.width),
          .keys = byte_rows(call.keys),
          .key_scales = byte_rows(call.key_scales),
          .q_format = call.q.format,
          .key_format = call.keys.format,
          .block_table =
              paged ? cuda::rows_of<const int32_t>(*call.block_table) : cuda::Rows<const int32_t>{},
          .num_pages = static_cast<int>(call.keys.dim(0)),
          .room = static_cast<int>(std::min(room, kMost)),
          .page_size = cuda::FastDivide(call.page_size),
          .q_offsets = call.q_offsets,
          .num_requests = static_cast<int>(call.num_requests),
          .starts = call.starts,
          .ends = call.ends,
          .tree_masks = call.tree_masks,
          .logits = cuda::rows_of<float>(call.logits),
          .columns = static_cast<int>(call.columns)};
}

/// Tokens that share a request, and as many tiles as fill the GPU. A token of a tree is by itself,
/// as its keys are its own.
inline Cuts cuts_of(const IndexLogitsCall& call,
                    const DeviceInfo& gpu,
                    int tile_keys,
                    int most_queries) {
  const int64_t requests = std::max<int64_t>(call.num_requests, 1);
  const int64_t most = call.tree_masks == nullptr ? most_queries : 1;
  const int64_t queries = std::clamp<int64_t>(ceil_div(call.num_tokens, requests), 1, most);
  const int64_t token_blocks = ceil_div(call.num_tokens, queries);
  const int64_t tiles = ceil_div<int64_t>(call.columns, tile_keys);
  const int64_t at_once = std::max<int64_t>(int64_t{gpu.num_sms} * kBlocksOfSm, 1);
  const auto near = [](const View& v) {
    const ByteRows rows = byte_rows(v);
    return NearRows{rows.data, static_cast<uint32_t>(rows.outer),
                    static_cast<uint32_t>(rows.inner)};
  };
  return {.keys = near(call.keys),
          .key_scales = near(call.key_scales),
          .queries = static_cast<int>(queries),
          .tiles = static_cast<int>(
              std::clamp<int64_t>(ceil_div(token_blocks * tiles, at_once), 1, kMostTiles)),
          .token_blocks = cuda::FastDivide(token_blocks),
          .read_once = token_blocks <= requests};
}

inline int64_t num_blocks(const IndexLogitsCall& call, const Cuts& cuts, int tile_keys) {
  return ceil_div<int64_t>(call.num_tokens, cuts.queries) *
         ceil_div<int64_t>(call.columns, int64_t{cuts.tiles} * tile_keys);
}

/// True if strides, but that of the last axis, have 32 bits.
inline bool is_near(const View& v) {
  for (int i = 0; i + 1 < v.rank; ++i) {
    if (v.dim(i) > 1 && (v.stride(i) * element_bytes(v.format)) >> 32 != 0) return false;
  }
  return true;
}

/// Rows are loaded sixteen bytes at a time, the scales of a key four.
template <class Args>
bool takes_codes(const Args& a) {
  const bool codes = a.keys.format == Format::kE4m3 || a.keys.format == Format::kU8;
  return codes && a.q.format == a.keys.format && index_width(a.q.format, a.q.dim(2)) == kChannels &&
         a.q.dim(1) <= kMostHeads && cuda::is_aligned(a.q, 16) && cuda::is_aligned(a.keys, 16) &&
         cuda::is_aligned(a.key_scales, 4) && is_near(a.keys) && is_near(a.key_scales);
}

/// Four bytes as they lie, on any address.
__device__ __forceinline__ uint32_t load_bytes(const std::byte* p) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    word |= static_cast<uint32_t>(p[i]) << 8 * i;
  return word;
}

/// Tokens of one request that a block has at once; lane i has the range of token i.
struct Queries {
  int token;
  int count;
  Call::Range own;

  /// By a whole warp.
  __device__ Call::Range range(int i) const {
    return {__shfl_sync(kAllLanes, own.first, i), __shfl_sync(kAllLanes, own.end, i)};
  }
};

/// The key at j, or the nearest of keys [first, end).
__device__ __forceinline__ int inside(int j, int first, int end) {
  return min(max(j, first), end - 1);
}

/// Columns [begin, end) that none of some tokens sees.
__device__ __forceinline__ void hide_columns(
    const Call& c, int token, int count, int begin, int end) {
  for (int i = 0; i < count; ++i) {
    float* row = c.logits[token + i];
    for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += kThreads)
      row[j] = -INFINITY;
  }
}

/// Tokens of one request in a block, and the tiles of its columns that some of them see a key of.
template <int kTile>
struct Stretch {
  Queries queries;
  int begin;      ///< of the block's columns
  int end;        ///< theirs
  int first_key;  ///< that a token sees
  int end_key;    ///< of those in the block's columns
  int first_tile;
  int tiles;

  /// By whole warps. `end_of_token` is that of the lane's token, if it has one.
  __device__ __forceinline__
  Stretch(const Call& c, int request, int token, int count, int end_of_token, int begin_, int end_)
      : queries{token, count, {0, 0}}, begin(begin_), end(end_) {
    const int lane = cuda::lane_id();
    if (lane < count) queries.own = c.range(request, token + lane, end_of_token);
    first_key = __reduce_min_sync(kAllLanes, queries.own.end > 0 ? queries.own.first : c.columns);
    end_key = min(end, __reduce_max_sync(kAllLanes, queries.own.end));
    first_tile = max(begin, first_key / kTile * kTile);
    tiles = end_key > first_tile ? (end_key - first_tile + kTile - 1) / kTile : 0;
  }

  __device__ int end_tile() const { return first_tile + tiles * kTile; }

  /// Writes the columns outside the tiles.
  __device__ __forceinline__ void hide_others(const Call& c) const {
    if (tiles == 0) return hide_columns(c, queries.token, queries.count, begin, end);
    hide_columns(c, queries.token, queries.count, begin, first_tile);
    hide_columns(c, queries.token, queries.count, min(end, end_tile()), end);
  }
};

/// Calls score(stretch, request) for the tokens of this block, request by request. By whole warps.
template <int kTile, bool kOneQuery, class Score>
__device__ __forceinline__ void for_requests(const Call& c, const Cuts& cuts, Score&& score) {
  const auto chunk = static_cast<int>(cuts.token_blocks.of(blockIdx.x));
  const int number =
      static_cast<int>(blockIdx.x) - chunk * static_cast<int>(cuts.token_blocks.divisor);
  const int begin = chunk * cuts.tiles * kTile;
  const int end = min(c.columns, begin + cuts.tiles * kTile);
  if constexpr (kOneQuery) {
    // Asked for before the request is known: one wait less at the start of a block.
    const uint32_t end_of_token = cuda::kept(static_cast<uint32_t>(c.ends[number]));
    const int request = c.request_of(number);
    score(Stretch<kTile>(c, request, number, 1, static_cast<int>(end_of_token), begin, end),
          request);
  } else {
    const int last = min(c.T, (number + 1) * cuts.queries);
    for (int t = number * cuts.queries; t < last;) {
      const int request = c.request_of(t);
      int next = last;
      if (c.num_requests > 1 && request >= 0 && request < c.num_requests)
        next = max(t + 1, min(last, c.q_offsets[request + 1]));
      const int own = min(t + cuda::lane_id(), next - 1);
      score(Stretch<kTile>(c, request, t, next - t, c.ends[own], begin, end), request);
      t = next;
    }
  }
}

}  // namespace fathom::index_logits
