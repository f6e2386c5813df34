// Scores of rows of codes whose tiles are boxes of one page: the copy engine brings them into a
// ring in shared memory, as many tiles ahead as that has stages, and a warp takes its rows from
// there when it multiplies them.
//
// A block has one token. While one tile is multiplied, the sums of the one before are weighed: a
// warpgroup has two sets of sums. Every number is that of the form whose keys come straight to
// registers (index_logits_tiles.cuh): the same words in the same products, weighed in the same
// order.
//
// Shared memory: queries | stages of 64 rows as they lie in memory | scales [16 tiles][64] |
// barriers
#pragma once

#include "fathom/kernels/cuda/products/mma.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"
#include "fathom/kernels/sparse/index_logits/index_logits_products.cuh"

namespace fathom::index_logits {

inline constexpr int kMostStages = 8;
inline constexpr uint32_t kScaleBytes = kMostTiles * kTileKeys * sizeof(uint32_t);
inline constexpr uint32_t kBarrierBytes = 2 * kMostStages * sizeof(uint64_t);
static_assert(kMostTiles <= 32, "a lane knows where a tile lies");

template <class Rows>
inline constexpr uint32_t kRowBytes = 64 * Rows::kChunks;

template <class Rows>
inline constexpr uint32_t kStageBytes = kRowBytes<Rows>* kTileKeys;

static_assert(QueryMemory::kBytes % 128 == 0 && kStageBytes<E2m1Rows> % 128 == 0,
              "the copy engine writes boxes to multiples of 128 bytes");

/// Shared memory of a block without its stages.
inline constexpr uint32_t kFixedBytes = kAtom + QueryMemory::kBytes + kScaleBytes + kBarrierBytes;

/// As many stages as leave room for all blocks of a multiprocessor.
template <class Rows>
constexpr int stages_of() {
  constexpr uint32_t kBytesOfSm = 228 << 10;
  constexpr uint32_t kBytesOfBlock = kBytesOfSm / kBlocksOfSm - (1 << 10);  // 1 KB is the system's
  const uint32_t stages = (kBytesOfBlock - kFixedBytes) / kStageBytes<Rows>;
  return stages < kMostStages ? static_cast<int>(stages) : kMostStages;
}

static_assert(stages_of<E4m3Rows>() >= 2 && stages_of<E2m1Rows>() >= 2,
              "one tile comes while another is multiplied");

// ---- the ring ----

/// As Cuts, for a ring of so many stages.
struct RingCuts : Cuts {
  int stages;
};

/// A stage, and the parity of its barriers' phase, in one register.
struct RingPlace {
  uint32_t bits = 0;  ///< the parity is the lowest

  __device__ uint32_t stage() const { return bits >> 1; }

  __device__ uint32_t parity() const { return bits & 1u; }

  __device__ void advance(int stages) {
    bits += 2;
    if (stage() == static_cast<uint32_t>(stages)) bits = parity() ^ 1u;
  }
};

/// Tiles of a stretch on their way from memory to registers. All warps have one, and call it
/// together; the first one gives orders to the copy engine.
template <class Rows>
class Ring {
 public:
  /// Barriers of stages: `full` of the bytes of a tile, `free` of the warps that have taken it.
  __device__ Ring(uint32_t data, uint32_t barriers, const RingCuts& cuts, const CUtensorMap& map)
      : data_(data), barriers_(barriers), cuts_(cuts), map_(map) {}

  /// By one thread, before a barrier of the block.
  __device__ void init() const {
#pragma unroll
    for (uint32_t stage = 0; stage < kMostStages; ++stage) {
      cuda::barrier_init(full(stage), 1);
      cuda::barrier_init(free(stage), kThreads / 32 * cuda::kWarpArrivals);
    }
    cuda::fence_barriers();
  }

  /// Asks for the first tiles.
  __device__ __forceinline__ void start(const Call& c,
                                        const Stretch<kTileKeys>& stretch,
                                        int request) {
    tiles_ = stretch.tiles;
    asked_ = 0;
    taken_ = 0;
    const int lane = cuda::lane_id();
    own_ = {0, 0};
    if (lane < tiles_) own_ = c.place(c.pages_of(request), stretch.first_tile + lane * kTileKeys);
    if (cuda::warp_id() != 0) return;
    while (asked_ < min(tiles_, cuts_.stages))
      bring();
  }

  /// Asks for another tile, if one has been taken since: in the stage of the tile before that one,
  /// which no warp still needs.
  __device__ __forceinline__ void refill() {
    if (cuda::warp_id() != 0 || asked_ >= min(tiles_, taken_ + cuts_.stages - 1)) return;
    cuda::barrier_wait(free(to_.stage()), to_.parity() ^ 1u);
    bring();
  }

  /// Where tile `tile` of the stretch begins. By whole warps.
  __device__ Call::Place place(int tile) const {
    return {__shfl_sync(kAllLanes, own_.page, tile), __shfl_sync(kAllLanes, own_.row, tile)};
  }

  /// Takes this lane's chunks of the next tile.
  __device__ __forceinline__ void take(uint4 (&chunks)[2][Rows::kChunks]) {
    cuda::barrier_wait(full(next_.stage()), next_.parity());
    const int lane = cuda::lane_id();
    const uint32_t own =
        data_ + next_.stage() * kStageBytes<Rows> +
        static_cast<uint32_t>(kWarpKeys * cuda::warp_id() + lane / 4) * kRowBytes<Rows>;
    uint32_t loaded = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int chunk = 0; chunk < Rows::kChunks; ++chunk) {
        const auto offset = static_cast<uint32_t>(Rows::chunk_offset(lane % 4, chunk));
        chunks[h][chunk] = cuda::load_shared_16_now(own + 8 * h * kRowBytes<Rows> + offset);
        loaded |= chunks[h][chunk].w;  // of each, since the assembler orders loads anew
      }
    }
    const auto zero = static_cast<uint32_t>(cuts_.stages) >> 31;
    cuda::warp_arrive_after(free(next_.stage()), loaded, zero);
    next_.advance(cuts_.stages);
    ++taken_;
  }

 private:
  __device__ uint32_t full(uint32_t stage) const {
    return barriers_ + stage * 8;
  }

  __device__ uint32_t free(uint32_t stage) const {
    return full(stage + kMostStages);
  }

  /// By the first warp. What lies behind the keys of a tensor arrives as zeros.
  __device__ __forceinline__ void bring() {
    const Call::Place at = place(asked_);
    const uint32_t barrier = full(to_.stage());
    cuda::warp_expect(barrier, kStageBytes<Rows>);
    cuda::warp_copy_box(data_ + to_.stage() * kStageBytes<Rows>, map_, 0, at.row, at.page, barrier,
                        cuda::weights_policy(cuts_.read_once));
    to_.advance(cuts_.stages);
    ++asked_;
  }

  uint32_t data_;
  uint32_t barriers_;
  const RingCuts& cuts_;
  const CUtensorMap& map_;
  Call::Place own_{};  ///< of the tile with the lane's number
  int tiles_ = 0;
  int asked_ = 0;   ///< tiles
  int taken_ = 0;   ///< tiles
  RingPlace to_;    ///< of the tile that is asked for next
  RingPlace next_;  ///< of the one that is taken next
};

/// Starts to bring the scales of all tiles of a stretch: [tiles][64].
template <class Rows>
__device__ __forceinline__ void bring_scales(const Cuts& cuts,
                                             const Stretch<kTileKeys>& stretch,
                                             const Ring<Rows>& ring,
                                             uint32_t* scales) {
  constexpr int kAtOnce = kThreads / kTileKeys;
  const auto tid = static_cast<int>(threadIdx.x);
  const int row = tid % kTileKeys;
  for (int tile = tid / kTileKeys; tile < stretch.tiles; tile += kAtOnce) {
    const Call::Place at = ring.place(tile);
    // Keys behind the last one that is seen have none.
    const int last = stretch.end_key - 1 - (stretch.first_tile + tile * kTileKeys);
    cuda::copy_async<4>(scales + tile * kTileKeys + row,
                        cuts.key_scales.at(at.page, at.row + min(row, last)), true);
  }
}

// ---- products ----

/// Scores a stretch tile by tile.
template <class Rows>
class RingScorer {
 public:
  /// Queries have been laid out, and scales are there.
  __device__ RingScorer(const Call& c,
                        const Stretch<kTileKeys>& stretch,
                        const QueryMemory& memory,
                        const uint32_t* scales,
                        Ring<Rows>& ring)
      : writer_(c, stretch.queries, memory),
        memory_(memory),
        ring_(ring),
        scales_(scales + kWarpKeys * cuda::warp_id() + cuda::lane_id() / 4),
        left_(stretch.tiles),
        now_{stretch.first_tile - kTileKeys} {}

  /// No branch is around a product: the assembler would wait for its sums right there.
  __device__ __forceinline__ void run() {
    float first[32];
    float second[32];
    multiply(first);
    cuda::wait_products<0>();
    cuda::settle_sums(first);
    while (true) {
      if (left_ == 0) return write(now_, first);
      multiply_and_weigh(second, first);
      if (left_ == 0) return write(now_, second);
      multiply_and_weigh(first, second);
    }
  }

 private:
  struct Tile {
    int begin;
    float factor = 0;
  };

  __device__ __forceinline__ void multiply_and_weigh(float (&sums)[32], const float (&before)[32]) {
    const Tile last = now_;
    multiply(sums);
    // Its branch keeps the assembler from giving out the products one by one while it weighs.
    ring_.refill();
    write(last, before);
    cuda::wait_products<0>();
    cuda::settle_sums(sums);
  }

  /// Starts the products of the next tile.
  __device__ __forceinline__ void multiply(float (&sums)[32]) {
    --left_;
    take();
    start_products(rows_, memory_.codes_of(0), sums);
  }

  __device__ __forceinline__ void take() {
    KeyTile<Rows> keys;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      keys.scales[h] = scales_[8 * h];
    ring_.take(keys.chunks);
    Rows::decode(keys.chunks, keys.scales, rows_);
    now_.factor = rows_.template factor<Rows>();
    now_.begin += kTileKeys;
    scales_ += kTileKeys;
  }

  __device__ __forceinline__ void write(const Tile& t, const float (&sums)[32]) {
    writer_.write(t.begin, 0, sums, t.factor);
  }

  LogitWriter<true> writer_;
  QueryMemory memory_;
  Ring<Rows>& ring_;
  const uint32_t* scales_;  ///< of this lane's first key of the next tile
  int left_;                ///< tiles that have not been multiplied
  Tile now_;
  DecodedRows rows_;  ///< its
};

template <class Rows>
__global__ void __launch_bounds__(kThreads, kBlocksOfSm)
    score_ring(const __grid_constant__ Call c,
               const __grid_constant__ RingCuts cuts,
               const __grid_constant__ CUtensorMap map) {
  extern __shared__ unsigned char logits_shared[];
  const QueryMemory memory = query_memory(logits_shared, 1);
  const uint32_t data = cuda::shared_address(memory.codes) + QueryMemory::kBytes;
  const uint32_t stage_bytes = static_cast<uint32_t>(cuts.stages) * kStageBytes<Rows>;
  auto* scales = reinterpret_cast<uint32_t*>(memory.codes + QueryMemory::kBytes + stage_bytes);
  Ring<Rows> ring(data, data + stage_bytes + kScaleBytes, cuts, map);
  if (threadIdx.x == 0) {
    ring.init();
    cuda::prefetch_map(map);
  }
  __syncthreads();
  cuda::let_next_start();
  cuda::wait_for_previous();
  for_requests<kTileKeys, true>(c, cuts, [&](const Stretch<kTileKeys>& stretch, int request) {
    if (stretch.tiles == 0) return stretch.hide_others(c);
    ring.start(c, stretch, request);
    bring_scales(cuts, stretch, ring, scales);
    stretch.hide_others(c);
    load_queries<Rows>(c, stretch.queries.token, stretch.queries.count, memory);
    cuda::wait_copies_all();
    cuda::fence_for_products();
    __syncthreads();
    RingScorer<Rows>(c, stretch, memory, scales, ring).run();
  });
}

}  // namespace fathom::index_logits
