// mhc_pre of many tokens where fn fits into registers: a cluster of 16 blocks goes through tiles of
// 16 tokens, a block with a sixteenth of the channels of all four streams. Streams are read once: a
// tile stays in shared memory from its products until it is mixed.
//
// Products are those of token_tiles.cuh, with fn cut into three bf16 numbers each; here a warp has
// its weights cut before the first tile. Blocks never meet: what they send counts its bytes at a
// barrier of the block that waits for it.
//
//   turn i      products of tile i, sums of the warps; each block's sums to the token's owner
//               the owner finds pre, post and the logits of comb, and sends pre to all blocks
//   meanwhile   other warps mix the tiles whose pre has come
//
// Of six tiles in memory three are on their way. A third warpgroup gives its registers to those
// that multiply. One warp of it finds the numbers of the one token of a tile that the block owns;
// combs, whose steps wait for each other, come eight tokens at a time. Three warps mix.
#pragma once

#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"
#include "fathom/kernels/mhc/mhc_pre/token_tiles.cuh"

namespace fathom::cuda {

inline constexpr int kResidentBlocks = 16;  ///< of a cluster
inline constexpr int kResidentWarps = 8;    ///< two warpgroups that multiply
inline constexpr int kMultipliers = kResidentWarps * kWarp;
inline constexpr int kMixWarps = 3;
inline constexpr int kResidentThreads = kMultipliers + kWarpgroup;
inline constexpr int kResidentTokens = 16;  ///< of a tile
inline constexpr int kResidentTiles = 6;    ///< in memory
inline constexpr int kResidentAhead = 3;    ///< of them on their way
inline constexpr int kCombsAtOnce = 8;      ///< one is a turn long, and so are eight
static_assert(kResidentTokens == kResidentBlocks, "a block owns one token of a tile");
static_assert(kResidentTiles == kResidentAhead + 3, "multiplied, known, mixed");

/// Tiles whose sums and whose pre a block has room for. Sums of tile i are sent once the sender has
/// mixed tile i - 3, whose pre says that the sums which lay there have been read; and once an owner
/// has all sums of tile i, no block reads pre of tile i - 3.
inline constexpr int kResidentSlots = 3;
static_assert(kResidentSlots + kResidentAhead == kResidentTiles);

/// Registers of a thread that multiplies, and of others; 168 at launch.
inline constexpr int kMultiplierRegisters = 216;
inline constexpr int kNumberRegisters = 72;
static_assert(2 * kMultiplierRegisters + kNumberRegisters <= 3 * 168, "warps would wait for ever");

/// kOwn: blocks of 32 channels of a warp.
template <int kOwn>
struct ResidentShape {
  static constexpr int kColumns = kPreRows / 8;  ///< groups of eight rows of fn
  static constexpr int kBlocks = kResidentWarps * kOwn;
  static constexpr int kBlocksOfStream = kBlocks / kStreams;
  static constexpr int kChannels = kBlocksOfStream * kBlockChannels;  ///< of a stream and block
  static constexpr int kWidth = kChannels * kResidentBlocks;          ///< of a stream
  static constexpr uint32_t kSumBytes = kResidentBlocks * kSums<kPreRows> * sizeof(float);
  static constexpr uint32_t kPreBytes = kResidentTokens * sizeof(float4);

  /// tiles[.][block][half][lane 4 g + t]: channels 8 t .. 8 t + 7 of a block, token 8 half + g
  struct Memory {
    uint4 tiles[kResidentTiles][kBlocks][2][kWarp];
    float sums[2][kResidentWarps][kResidentTokens][kSums<kPreRows>];  ///< of odd and even tiles
    /// Of the block's own token, by block.
    float received[kResidentSlots][kResidentBlocks][kSums<kPreRows>];
    float4 pre[kResidentSlots][kResidentTokens];
    uint64_t sums_full[kResidentSlots], pre_full[kResidentSlots];
    uint64_t seen[kResidentSlots], mixed[kResidentSlots];  ///< of tiles
    float logits[kCombsAtOnce][kStreams * kStreams];
    Affine<kPreRows> affine;
  };
};

template <int kOwn>
struct ResidentBlock {
  using Shape = ResidentShape<kOwn>;
  using Weights = uint32_t[kOwn][Shape::kColumns][3][4];  ///< low, middle, high; pairs of channels

  const StreamCall& c;
  typename Shape::Memory& m;
  int rank;
  int cluster, clusters;

  __device__ static int g() { return lane_id() / 4; }

  __device__ static int t() { return lane_id() % 4; }

  __device__ static bool multiplies() { return warp_id() < kResidentWarps; }

  /// Tiles of this cluster: cluster, cluster + clusters, ...
  __device__ int num_tiles() const {
    const int tiles = (c.T + kResidentTokens - 1) / kResidentTokens;
    return cluster < tiles ? (tiles - cluster + clusters - 1) / clusters : 0;
  }

  __device__ int first_token(int i) const { return (cluster + i * clusters) * kResidentTokens; }

  __device__ int first_channel() const { return rank * Shape::kChannels; }

  /// Where block k of this warp lies: channels of this lane.
  __device__ static int stream_of(int k) { return (warp_id() * kOwn + k) / Shape::kBlocksOfStream; }

  __device__ int channel_of(int k) const {
    return first_channel() + (warp_id() * kOwn + k) % Shape::kBlocksOfStream * kBlockChannels +
           kVector * t();
  }

  __device__ __forceinline__ void load_weights(Weights& w) const {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const float* from = c.fn + int64_t{stream_of(k)} * c.D + channel_of(k);
#pragma unroll
      for (int n = 0; n < Shape::kColumns; ++n) {
        const float* row = from + (8 * n + g()) * c.fn_stride;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = *reinterpret_cast<const float2*>(row + 2 * i);
          const WeightParts parts(pair.x, pair.y);
          w[k][n][0][i] = parts.low;
          w[k][n][1][i] = parts.middle;
          w[k][n][2][i] = parts.high;
        }
      }
    }
  }

  /// Starts to bring tile i, a group of copies even where there is none.
  __device__ __forceinline__ void bring(int i, int count) const {
    if (i < count) {
      auto& to = m.tiles[i % kResidentTiles];
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int token = first_token(i) + 8 * h + g();
          const bool exists = token < c.T;
          copy_async<16>(&to[warp_id() * kOwn + k][h][lane_id()],
                         c.stream(exists ? token : 0, stream_of(k)) + channel_of(k), exists);
        }
      }
    }
    end_copy_group();
  }

  /// The sums of this warp over its channels of tile i; a lane reads what it brought.
  __device__ __forceinline__ void multiply(int i, const Weights& w) const {
    // acc[h][n]: of tokens g and g + 8 with rows 8 n + 2 t and + 1 of fn, over half of the channels
    float acc[2][Shape::kColumns][4] = {};
    float squares[2] = {};
    const auto& tile = m.tiles[i % kResidentTiles];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const uint4 x = tile[warp_id() * kOwn + k][0][lane_id()];
      const uint4 x8 = tile[warp_id() * kOwn + k][1][lane_id()];
#pragma unroll
      for (int part = 0; part < 3; ++part) {
#pragma unroll
        for (int n = 0; n < Shape::kColumns; ++n) {
          const auto& of = w[k][n][part];
          mma_16x8x16(acc[0][n], x.x, x8.x, x.y, x8.y, of[0], of[1]);
          mma_16x8x16(acc[1][n], x.z, x8.z, x.w, x8.w, of[2], of[3]);
        }
      }
      squares[0] = add_products(x, x, squares[0]);
      squares[1] = add_products(x8, x8, squares[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float* row = m.sums[i % 2][warp_id()][8 * h + g()];
#pragma unroll
      for (int n = 0; n < Shape::kColumns; ++n) {
        *reinterpret_cast<float2*>(row + 8 * n + 2 * t()) = make_float2(
            acc[0][n][2 * h] + acc[1][n][2 * h], acc[0][n][2 * h + 1] + acc[1][n][2 * h + 1]);
      }
      const float sum = combine_lanes<4>(squares[h], Add());
      if (t() == 0) *reinterpret_cast<float4*>(row + kPreRows) = make_float4(sum, 0, 0, 0);
    }
  }

  // ---- what blocks send each other ----

  /// Of the use of a slot for tile i.
  __device__ static uint32_t parity(int i) {
    return static_cast<uint32_t>(i / kResidentSlots & 1);
  }

  /// By one thread, before the blocks of the cluster start.
  __device__ void init_barriers() const {
    for (int slot = 0; slot < kResidentSlots; ++slot) {
      barrier_init(shared_address(&m.sums_full[slot]), 1);
      barrier_init(shared_address(&m.pre_full[slot]), 1);
      barrier_init(shared_address(&m.seen[slot]), kResidentWarps * kWarpArrivals);
      barrier_init(shared_address(&m.mixed[slot]), kMixWarps * kWarpArrivals);
      barrier_expect(shared_address(&m.sums_full[slot]), Shape::kSumBytes);
      barrier_expect(shared_address(&m.pre_full[slot]), Shape::kPreBytes);
    }
    fence_barriers();
  }

  /// Waits for all bytes of tile i. One of the threads that wait expects those of the slot's next
  /// tile.
  __device__ __forceinline__ void wait_for(uint64_t (&full)[kResidentSlots],
                                           int i,
                                           uint32_t bytes,
                                           bool expects) const {
    const uint32_t barrier = shared_address(&full[i % kResidentSlots]);
    barrier_wait(barrier, parity(i));
    if (expects) barrier_expect(barrier, bytes);
  }

  /// Adds up the warps and sends each token of tile i to its owner; a lane has four sums.
  __device__ __forceinline__ void send_sums(int i) const {
    constexpr int kFours = kSums<kPreRows> / 4;
    constexpr int kLanes = 8;
    constexpr int kTokensOfWarp = kResidentTokens / kResidentWarps;
    static_assert(kFours <= kLanes && kTokensOfWarp * kLanes <= kWarp);
    const int token = warp_id() * kTokensOfWarp + lane_id() / kLanes;
    const int four = lane_id() % kLanes;
    if (lane_id() < kTokensOfWarp * kLanes && four < kFours) {
      const auto of_warp = [&](int w) {
        return reinterpret_cast<const float4*>(m.sums[i % 2][w][token])[four];
      };
      float4 sum = of_warp(0);
#pragma unroll
      for (int w = 1; w < kResidentWarps; ++w) {
        const float4 other = of_warp(w);
        sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
      }
      const int slot = i % kResidentSlots;
      send(address_in_block(shared_address(&m.received[slot][rank][4 * four]), token),
           address_in_block(shared_address(&m.sums_full[slot]), token), sum, true);
    }
    __syncwarp();
  }

  /// The numbers of the token of tile i that this block owns, by one warp; pre goes to all blocks.
  __device__ __forceinline__ void find_numbers(int i) const {
    const int q = lane_id();
    const int slot = i % kResidentSlots;
    wait_for(m.sums_full, i, Shape::kSumBytes, q == 0);
    float sum = 0.0f;
    if (q <= kPreRows) {
#pragma unroll
      for (int block = 0; block < kResidentBlocks; ++block)
        sum += m.received[slot][block][q];
    }
    const float z = logit_of_lane<kPreRows>(c, m.affine, sum);
    const float share = sigmoid(z);
    const float pre = share + c.hc_eps;
    const float4 all =
        make_float4(__shfl_sync(0xFFFFFFFFu, pre, 0), __shfl_sync(0xFFFFFFFFu, pre, 1),
                    __shfl_sync(0xFFFFFFFFu, pre, 2), __shfl_sync(0xFFFFFFFFu, pre, 3));
    static_assert(kStreams == 4);
    send(address_in_block(shared_address(&m.pre[slot][rank]), q % kResidentBlocks),
         address_in_block(shared_address(&m.pre_full[slot]), q % kResidentBlocks), all,
         q < kResidentBlocks);
    const int token = first_token(i) + rank;
    if (q >= kStreams && q < kPreRows && token < c.T) {
      if (q < 2 * kStreams) {
        c.post[token * c.post_stride + q - kStreams] = 2.0f * share;
      } else {
        m.logits[i % kCombsAtOnce][q - 2 * kStreams] = z;
      }
    }
    __syncwarp();
  }

  /// comb of the block's tokens of the last tiles up to i, a lane each, by the same warp.
  __device__ __forceinline__ void write_combs(int i) const {
    const int mine = i - i % kCombsAtOnce + lane_id();
    if (mine <= i) {
      const int token = first_token(mine) + rank;
      if (token < c.T) write_comb_of_logits(c, token, m.logits[lane_id()]);
    }
    __syncwarp();  // the logits have been read
  }

  /// Eight channels a thread at a time, by the warps that mix.
  __device__ __forceinline__ void mix_tile(int i) const {
    const auto& tile = m.tiles[i % kResidentTiles];
#pragma unroll 1
    for (int part = warp_id() - kResidentWarps - 1; part < 2 * Shape::kBlocksOfStream;
         part += kMixWarps) {
      const int half = part % 2;
      const int block = part / 2;  // of a stream
      const int within = 8 * half + g();
      const int token = first_token(i) + within;
      float streams[kStreams][kVector];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        const uint4* held = &tile[j * Shape::kBlocksOfStream + block][half][lane_id()];
        unpack(load_packed(reinterpret_cast<const Bf16*>(held)), streams[j]);
      }
      float x[kVector];
      mix(streams, m.pre[i % kResidentSlots][within], x);
      const int channel = first_channel() + block * kBlockChannels + kVector * t();
      if (token < c.T) store8(c.x + int64_t{token} * c.x_stride + channel, x);
    }
  }

  __device__ __forceinline__ void multiply_all(int count) const {
    Weights w;
    load_weights(w);
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < kResidentAhead; ++i)
      bring(i, count);
    cluster_wait();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      wait_copy_groups<kResidentAhead - 1>();
      multiply(i, w);
      if (i >= kResidentSlots)
        barrier_wait(shared_address(&m.mixed[i % kResidentSlots]), parity(i - kResidentSlots));
      warp_arrive(shared_address(&m.seen[i % kResidentSlots]));
      named_sync(1, kMultipliers);  // sums are here
      bring(i + kResidentAhead, count);
      send_sums(i);
    }
  }

  __device__ __forceinline__ void mix_all(int count) const {
    const bool expects = warp_id() == kResidentWarps + 1 && lane_id() == 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      barrier_wait(shared_address(&m.seen[i % kResidentSlots]), parity(i));
      wait_for(m.pre_full, i, Shape::kPreBytes, expects);
      mix_tile(i);
      warp_arrive(shared_address(&m.mixed[i % kResidentSlots]));
    }
  }

  __device__ __forceinline__ void number_all(int count) const {
    if (warp_id() == kResidentWarps) m.affine.bring(c, lane_id());
    __syncwarp();
    wait_for_previous();
    cluster_wait();
    if (warp_id() > kResidentWarps) return mix_all(count);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      find_numbers(i);
      if ((i + 1) % kCombsAtOnce == 0 || i + 1 == count) write_combs(i);
    }
  }

  __device__ __forceinline__ void run() const {
    if (threadIdx.x == 0) init_barriers();
    cluster_arrive_relaxed();  // blocks may be sent to once they have started
    if (multiplies()) {
      take_registers<kMultiplierRegisters>();
      multiply_all(num_tiles());
    } else {
      give_registers<kNumberRegisters>();
      number_all(num_tiles());
    }
  }
};

template <int kOwn>
__global__ void __launch_bounds__(kResidentThreads, 1)
    read_resident_tiles(const __grid_constant__ StreamCall c) {
  extern __shared__ __align__(16) unsigned char resident_memory[];
  let_next_start();
  const ResidentBlock<kOwn> block{
      .c = c,
      .m = *reinterpret_cast<typename ResidentShape<kOwn>::Memory*>(resident_memory),
      .rank = static_cast<int>(cluster_rank()),
      .cluster = static_cast<int>(blockIdx.x) / kResidentBlocks,
      .clusters = static_cast<int>(gridDim.x) / kResidentBlocks};
  block.run();
}

}  // namespace fathom::cuda
