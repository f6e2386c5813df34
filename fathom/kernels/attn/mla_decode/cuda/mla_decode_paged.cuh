// Decode over the keys of a block table, in order, on the tensor cores of Hopper.
#pragma once

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_tiles.cuh"

namespace fathom::mla_decode {

/// Keys that a row does not see get -inf.
__device__ __forceinline__ void mask_scores(float (&s)[kScores],
                                            int first_key,
                                            const int (&limits)[2]) {
  const int column = first_key + 2 * (lane_id() & 3);
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int key = column + i / 4 * 8 + (i & 1);
    if (key >= limits[i >> 1 & 1]) s[i] = -INFINITY;
  }
}

/// Keys of a request by their number.
struct InOrder {
  const PagedKeys& keys;
  int64_t b;

  __device__ InOrder(const Call& c, const Piece& p) : keys(c.keys), b(p.b) {}

  __device__ __forceinline__ int64_t operator()(uint32_t key) const { return keys.place(b, key); }
};

/// Which keys of a request the two rows of a lane see: those before a limit each.
struct SeenKeys {
  using Places = InOrder;
  static constexpr int kScored = kPanels;

  __device__ static Piece piece(const Call& c, const Cuts& cuts) { return piece_of(c, cuts); }

  int limits[2];
  int all_see;  ///< keys that all rows of the block see

  __device__ SeenKeys(const Call& c, const Piece& p) : limits{}, all_see(0) {
    if (p.end_row == p.first_row + kTileRows)
      all_see = static_cast<int>(c.visible(p.length, query_of(c, p.first_row)));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t at = p.first_row + (warp_id() & 3) * 16 + lane_id() / 4 + 8 * h;
      limits[h] = at < p.end_row ? static_cast<int>(c.visible(p.length, query_of(c, at))) : 0;
    }
  }

  /// What of the tile must be known to hide keys; asked for before its scores.
  struct Asked {};

  __device__ Asked ask(int) const {
    return {};
  }

  __device__ __forceinline__ void hide(float (&s)[kScores], int first_key, Asked) const {
    if (first_key + kTileKeys > all_see) mask_scores(s, first_key, limits);
  }
};

/// The same of tokens in trees: those before the tree, and those of its rows that a mask names.
struct SeenOfTrees {
  using Places = InOrder;
  static constexpr int kScored = kPanels;

  __device__ static Piece piece(const Call& c, const Cuts& cuts) { return piece_of(c, cuts); }

  int begins[2];  ///< keys before the tree; 0 of a row that does not exist
  uint64_t masks[2];
  int all_see;

  __device__ SeenOfTrees(const Call& c, const Piece& p) : begins{}, masks{}, all_see(0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t at = p.first_row + (warp_id() & 3) * 16 + lane_id() / 4 + 8 * h;
      if (at >= p.end_row) continue;
      const TreeToken token = c.tree_token(p.b, p.length, query_of(c, at));
      begins[h] = static_cast<int>(token.begin);
      masks[h] = token.mask;
    }
    if (p.end_row == p.first_row + kTileRows) all_see = begins[0];
  }

  struct Asked {};

  __device__ Asked ask(int) const {
    return {};
  }

  /// Bit i: row h sees key first_key + i.
  __device__ __forceinline__ uint64_t window(int h, int first_key) const {
    const int behind = first_key - begins[h];
    if (behind >= 0) return behind < kTileKeys ? masks[h] >> behind : 0;
    const int before = -behind;
    return before < kTileKeys ? masks[h] << before | ((uint64_t{1} << before) - 1) : ~uint64_t{0};
  }

  __device__ __forceinline__ void hide(float (&s)[kScores], int first_key, Asked) const {
    if (first_key + kTileKeys <= all_see) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint64_t seen = window(h, first_key) >> 2 * (lane_id() & 3);
#pragma unroll
      for (int k = 0; k < kScores / 4; ++k) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if ((seen >> (8 * k + e) & 1) == 0) s[4 * k + 2 * h + e] = -INFINITY;
      }
    }
  }
};

static_assert(kTileKeys == kMostTreeRows, "a window of keys has the bits of a mask");

/// Keys of a token by their number among those that it sees, which are not all that lie before it
/// where its query is in a tree.
struct OnPath {
  const PagedKeys& keys;
  int64_t b;
  int64_t length;  ///< of the request
  TreeToken token;

  __device__ OnPath(const Call& c, const Piece& p)
      : keys(c.keys), b(p.b), length(c.length(p.b)), token{int64_t{p.num_keys}, 0} {
    if (c.tree_masks != nullptr) token = c.tree_token(b, length, query_of(c, p.first_row));
  }

  __device__ __forceinline__ int64_t operator()(uint32_t key) const {
    const int64_t at = place_of_seen(token, key);
    return at < length ? keys.place(b, static_cast<uint32_t>(at)) : -1;
  }
};

/// Rows of one query, which see all keys of their block.
struct SeenByQuery {
  using Places = OnPath;
  static constexpr int kScored = kPanels;

  int limits[2];
  int all_see;

  __device__ SeenByQuery(const Call&, const Piece& p)
      : limits{}, all_see(p.end_row == p.first_row + kTileRows ? p.num_keys : 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t at = p.first_row + (warp_id() & 3) * 16 + lane_id() / 4 + 8 * h;
      limits[h] = at < p.end_row ? p.num_keys : 0;
    }
  }

  __device__ static Piece piece(const Call& c, const Cuts& cuts) {
    return piece_of_query(c, cuts);
  }

  struct Asked {};

  __device__ Asked ask(int) const {
    return {};
  }

  __device__ __forceinline__ void hide(float (&s)[kScores], int first_key, Asked) const {
    if (first_key + kTileKeys > all_see) mask_scores(s, first_key, limits);
  }
};

template <class C, class Seen>
__global__ void __launch_bounds__(kTileThreads, 1)
    decode_tiles(const __grid_constant__ Call c,
                 const __grid_constant__ Cuts cuts,
                 const __grid_constant__ CUtensorMap map) {
  extern __shared__ unsigned char raw_shared[];
  const uint32_t raw = shared_address(raw_shared);
  const uint32_t shared = (raw + 1023) & ~1023u;
  unsigned char* base = raw_shared + (shared - raw);
  const Barriers bars{shared + kBarriersAt};
  if (threadIdx.x == 0) {
    bars.init(kWarpgroup);
    if (cuts.by_engine) prefetch_map(map);
  }
  __syncthreads();
  const bool in_cluster = cuts.merge == Merge::kCluster;
  const int wg = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  wait_for_previous();
  const Piece p = Seen::piece(c, cuts);
  // Blocks of the next kernel wait where those of this one still have to run.
  constexpr int kShort = 8;
  if (p.num_tiles <= kShort) let_next_start();
  if (wg == 2) {
    give_registers<56>();
    bring_keys(c, p, shared + kKeysAt, bars, map, typename Seen::Places(c, p), C{});
    __syncwarp();
    if (in_cluster) meet_cluster_relaxed();
  } else {
    take_registers<224>();
    if (cuts.copy_queries) {
      copy_queries<kPanels>(c, p, shared);
      wait_copies_all();
    } else {
      convert_queries<kPanels>(c, p, shared);
    }
    fence_for_products();
    named_sync(kAll, kBoth);
    float o[kSums];
    RowPair state;
    attend_tiles(c, p, Seen(c, p), base, shared, bars, wg, o, state);
    let_next_start();
    const C* data = static_cast<const C*>(c.keys.data) + wg * (kTileL / 2);
    finish_rows(c, p, cuts, base, shared, wg, o, state,
                [&](const uint2* rests, int left, uint32_t values) {
                  const int mine = lane_id() & (kRestsAtOnce - 1);
                  const typename Seen::Places place_of(c, p);
                  const int64_t place = mine < left ? place_of(rests[mine].x) : -1;
                  bring_values(data + (place < 0 ? 0 : place),
                               __ballot_sync(0xFFFFFFFFu, place >= 0), values);
                });
  }
  // Shared memory that another block reads stays until it has.
  if (in_cluster) meet_cluster_relaxed();
}

}  // namespace fathom::mla_decode
