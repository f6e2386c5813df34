// mhc_pre and mhc_head of many tokens, by the tensor cores: a cluster of blocks has tiles of 16 to
// 128 tokens, a block a share of the channels of all four streams, a warp some blocks of 32 of
// them.
//
// fn is float32. Each weight is cut into three parts of eight bits (bf16), whose products with a
// bf16 stream are exact, so that float32 sums of them are as good as those of float32 products:
//
//   w = high + middle + low,   high = bf16(w), middle = bf16(w - high), low = bf16(w - high -
//   middle)
//
// A warp brings its 32 channels of a tile and of fn by copies of its own lanes into memory that
// they alone read, so nothing waits for other warps until all is multiplied. Lane 4 g + t has of a
// block
//
//   channels 8 t + 0 .. 7 of tokens g and g + 8 of every 16, and of rows g of every 8 rows of fn
//
// which are operands of two products, as the order of k is free. A sum never has more than the
// blocks of one warp within the tensor cores, which cut where others round.
//
//   1  each block sends its sums to the block of the cluster that owns the token
//   2  the owner adds them up in order, and sends pre to all; post and comb are its own work
//   3  every block mixes its channels of the tile, which the last cache still has
//
// Meanwhile the next tile is on its way. A token has the same bits in a tile of any size.
#pragma once

#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/products/mma.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/mhc/mhc_pre/token_numbers.cuh"

namespace fathom::cuda {

inline constexpr int kTileWarps = 8;
inline constexpr int kTileThreads = kTileWarps * kWarp;
inline constexpr int kBlockChannels = 32;
inline constexpr int kMostTileTokens = 128;
inline constexpr int kMostTileCluster = 16;
inline constexpr int kLeastTileCluster = 8;

/// How the channels are cut.
struct TileCut {
  int cluster;         ///< blocks
  int channels;        ///< of a stream and block
  FastDivide blocks;   ///< of 32 channels, of a stream
  FastDivide vectors;  ///< of eight channels, of a stream
  int blocks_of_all;   ///< streams
  int tiles;
};

template <int kRows, int kTokens>
struct Tile {
  static constexpr int kColumns = (kRows + 7) / 8;  ///< groups of eight rows of fn
  static constexpr int kRowTiles = kTokens / 16;
  static constexpr int kStages = kTokens > 64 ? 2 : kTokens > 32 ? 3 : 4;
  static constexpr int kMostOwned = kTokens / kLeastTileCluster;
  static_assert(kTokens % kMostTileCluster == 0, "every block of a cluster owns as many tokens");

  /// Sixteen bytes of each lane: what it brings is what it reads.
  struct Stage {
    uint4 x[kRowTiles][2][kWarp];
    uint4 fn[kColumns][2][kWarp];
  };

  struct Memory {
    union {
      Stage ring[kTileWarps][kStages];
      float sums[kTileWarps][kTokens][kSums<kRows>];
    };

    float received[kTokens][kSums<kRows>];  ///< by block, then by token that this one owns
    float logits[kMostOwned][kStreams * kStreams];
    float4 pre[kTokens];
    Affine<kRows> affine;
  };
};

/// Three times bf16 of a pair of weights.
struct WeightParts {
  uint32_t high, middle, low;

  __device__ __forceinline__ WeightParts(float a, float b) {
    high = pair_of_floats(a, b);
    a -= low_bf16(high);
    b -= high_bf16(high);
    middle = pair_of_floats(a, b);
    low = pair_of_floats(a - low_bf16(middle), b - high_bf16(middle));
  }
};

template <int kRows, int kTokens>
struct TileBlock {
  using Shape = Tile<kRows, kTokens>;

  const StreamCall& c;
  const TileCut& cut;
  typename Shape::Memory& m;
  int rank;

  __device__ static int g() { return lane_id() / 4; }

  __device__ static int t() { return lane_id() % 4; }

  __device__ int first_channel() const { return rank * cut.channels; }

  __device__ int owned() const { return kTokens / cut.cluster; }

  // ---- copies: block number `block` of the streams' blocks ----

  struct Place {
    int stream;
    int channel;  ///< of the stream, of this lane
  };

  __device__ __forceinline__ Place place(int block) const {
    const auto stream = static_cast<int>(cut.blocks.of(static_cast<uint32_t>(block)));
    const int within = block - stream * static_cast<int>(cut.blocks.divisor);
    return {stream, first_channel() + within * kBlockChannels + kVector * t()};
  }

  __device__ __forceinline__ void bring_fn(int block, typename Shape::Stage& stage) const {
    const Place at = place(block);
    const float* from = c.fn + int64_t{at.stream} * c.D + at.channel;
#pragma unroll
    for (int n = 0; n < Shape::kColumns; ++n) {
      const int row = 8 * n + g();
      const bool exists = row < kRows;
      const float* values = from + (exists ? row : 0) * c.fn_stride;
      copy_async<16>(&stage.fn[n][0][lane_id()], values, exists);
      copy_async<16>(&stage.fn[n][1][lane_id()], values + 4, exists);
    }
  }

  __device__ __forceinline__ void bring_x(int block, int tile, typename Shape::Stage& stage) const {
    const Place at = place(block);
    const int first = tile * kTokens + g();
#pragma unroll
    for (int i = 0; i < 2 * Shape::kRowTiles; ++i) {
      const int token = first + 8 * i;
      const bool exists = token < c.T;
      const Bf16* from = c.stream(exists ? token : 0, at.stream) + at.channel;
      copy_async<16>(&stage.x[i / 2][i % 2][lane_id()], from, exists);
    }
  }

  /// What the ring has room for, of fn, of this warp.
  __device__ __forceinline__ void begin_fn() const {
#pragma unroll 1
    for (int s = 0; s < Shape::kStages; ++s) {
      const int block = warp_id() + s * kTileWarps;
      if (block < cut.blocks_of_all) bring_fn(block, m.ring[warp_id()][s]);
    }
  }

  /// The same of the streams, a group of copies a stage; those of fn belong to the first.
  __device__ __forceinline__ void begin_x(int tile) const {
#pragma unroll 1
    for (int s = 0; s < Shape::kStages; ++s) {
      const int block = warp_id() + s * kTileWarps;
      if (block < cut.blocks_of_all) bring_x(block, tile, m.ring[warp_id()][s]);
      end_copy_group();
    }
  }

  // ---- products ----

  /// acc[m][n]: of tokens 16 m + g and + 8 with rows 8 n + 2 t and + 1 of fn, as mma_16x8x16 has
  /// them. squares: of the same tokens, over this lane's channels.
  struct Sums {
    float acc[Shape::kRowTiles][Shape::kColumns][4];
    float squares[Shape::kRowTiles][2];
  };

  __device__ __forceinline__ void multiply(const typename Shape::Stage& stage, Sums& sums) const {
#pragma unroll
    for (int n = 0; n < Shape::kColumns; ++n) {
      // parts[p][i]: pair i of the lane's eight channels, part p
      uint32_t parts[3][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 w = stage.fn[n][half][lane_id()];
        const WeightParts a(__uint_as_float(w.x), __uint_as_float(w.y));
        const WeightParts b(__uint_as_float(w.z), __uint_as_float(w.w));
        parts[0][2 * half] = a.low;
        parts[1][2 * half] = a.middle;
        parts[2][2 * half] = a.high;
        parts[0][2 * half + 1] = b.low;
        parts[1][2 * half + 1] = b.middle;
        parts[2][2 * half + 1] = b.high;
      }
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
        const uint4 x = stage.x[i][0][lane_id()];
        const uint4 x8 = stage.x[i][1][lane_id()];
#pragma unroll
        for (const auto& w : parts) {
          mma_16x8x16(sums.acc[i][n], x.x, x8.x, x.y, x8.y, w[0], w[1]);
          mma_16x8x16(sums.acc[i][n], x.z, x8.z, x.w, x8.w, w[2], w[3]);
        }
        if (n > 0) continue;
        sums.squares[i][0] = add_products(x, x, sums.squares[i][0]);
        sums.squares[i][1] = add_products(x8, x8, sums.squares[i][1]);
      }
    }
  }

  __device__ __forceinline__ void multiply_tile(int tile, Sums& sums) const {
    int stage = 0;
#pragma unroll 1
    for (int block = warp_id(); block < cut.blocks_of_all; block += kTileWarps) {
      auto& here = m.ring[warp_id()][stage];
      wait_copy_groups<Shape::kStages - 1>();
      multiply(here, sums);
      const int next = block + Shape::kStages * kTileWarps;
      if (next < cut.blocks_of_all) {
        bring_fn(next, here);
        bring_x(next, tile, here);
      }
      end_copy_group();
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    }
  }

  /// The sums of this warp to memory that was the ring.
  __device__ __forceinline__ void store_sums(Sums& sums) const {
    auto& to = m.sums[warp_id()];
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* row = to[16 * i + 8 * h + g()];
#pragma unroll
        for (int n = 0; n < Shape::kColumns; ++n) {
          const int column = 8 * n + 2 * t();
          if (column < kRows) {
            *reinterpret_cast<float2*>(row + column) =
                make_float2(sums.acc[i][n][2 * h], sums.acc[i][n][2 * h + 1]);
          }
        }
        const float squares = combine_lanes<4>(sums.squares[i][h], Add());
        if (t() == 0) row[kRows] = squares;
      }
    }
  }

  /// Adds up the warps and sends each token to its owner; a lane has a sum.
  __device__ __forceinline__ void send_sums() const {
    const int q = lane_id();
    if (q <= kRows) {
#pragma unroll 4
      for (int token = warp_id(); token < kTokens; token += kTileWarps) {
        float sum = m.sums[0][token][q];
#pragma unroll
        for (int w = 1; w < kTileWarps; ++w)
          sum += m.sums[w][token][q];
        const int owner = token / owned();
        float* to = m.received[rank * owned() + token - owner * owned()] + q;
        *in_block(to, static_cast<unsigned>(owner)) = sum;
      }
    }
    __syncwarp();
  }

  /// The numbers of the tokens that this block owns, a warp each; pre goes to all blocks.
  __device__ __forceinline__ void find_numbers(int tile) const {
    const int q = lane_id();
#pragma unroll 1
    for (int i = warp_id(); i < owned(); i += kTileWarps) {
      float sum = 0.0f;
      if (q <= kRows) {
#pragma unroll 8
        for (int block = 0; block < cut.cluster; ++block)
          sum += m.received[block * owned() + i][q];
      }
      const float z = logit_of_lane<kRows>(c, m.affine, sum);
      const int within = rank * owned() + i;
      const int token = tile * kTokens + within;
      if (q < kStreams) {
        const float pre = sigmoid(z) + c.hc_eps;
        float* to = reinterpret_cast<float*>(&m.pre[within]) + q;
#pragma unroll 1
        for (int block = 0; block < cut.cluster; ++block)
          *in_block(to, static_cast<unsigned>(block)) = pre;
      } else if (kRows == kPreRows && q < kRows && token < c.T) {
        if (q < 2 * kStreams) {
          c.post[token * c.post_stride + q - kStreams] = 2.0f * sigmoid(z);
        } else {
          m.logits[i][q - 2 * kStreams] = z;
        }
      }
      __syncwarp();
    }
  }

  /// comb of the tokens that this block owns, a lane each.
  __device__ __forceinline__ void write_combs(int tile) const {
    if (kRows != kPreRows || warp_id() != 0) return;
    const int token = tile * kTokens + rank * owned() + lane_id();
    if (lane_id() < owned() && token < c.T) write_comb_of_logits(c, token, m.logits[lane_id()]);
    __syncwarp();
  }

  /// Eight channels of all streams of a token, loaded; then mixed.
  struct MixItem {
    int within;  ///< token of the tile
    int channel;
    Packed<Bf16> x[kStreams];
    bool exists;
  };

  __device__ __forceinline__ void load_item(int tile, int number, MixItem& item) const {
    item.within = static_cast<int>(cut.vectors.of(static_cast<uint32_t>(number)));
    const int vector = number - item.within * static_cast<int>(cut.vectors.divisor);
    item.channel = first_channel() + kVector * vector;
    const int token = tile * kTokens + item.within;
    item.exists = item.within < kTokens && token < c.T;
    if (!item.exists) return;
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      item.x[j] = load_packed(c.stream(token, j) + item.channel);
  }

  __device__ __forceinline__ void mix_item(int tile, const MixItem& item) const {
    if (!item.exists) return;
    float streams[kStreams][kVector];
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      unpack(item.x[j], streams[j]);
    float x[kVector];
    mix(streams, m.pre[item.within], x);
    store8(c.x + int64_t{tile * kTokens + item.within} * c.x_stride + item.channel, x);
  }

  __device__ __forceinline__ void mix_tile(int tile) const {
    constexpr int kAtOnce = 2;
    const int count = kTokens * static_cast<int>(cut.vectors.divisor);
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x); first < count;
         first += kAtOnce * kTileThreads) {
      MixItem items[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        load_item(tile, first + i * kTileThreads, items[i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        mix_item(tile, items[i]);
    }
  }

  __device__ __forceinline__ void run() const {
    const int clusters = static_cast<int>(gridDim.x) / cut.cluster;
    int tile = static_cast<int>(blockIdx.x) / cut.cluster;
    cluster_arrive_relaxed();  // blocks may be sent to once they have started
    begin_fn();
    m.affine.bring(c);
    wait_for_previous();
    begin_x(tile);
    cluster_wait();
#pragma unroll 1
    while (tile < cut.tiles) {
      Sums sums = {};
      multiply_tile(tile, sums);
      __syncthreads();  // nobody reads the ring
      store_sums(sums);
      __syncthreads();
      send_sums();
      cluster_sync();  // all sums of owned tokens are here, and nobody reads those of warps
      const int next = tile + clusters;
      if (next < cut.tiles) {
        begin_fn();
        begin_x(next);
      }
      find_numbers(tile);
      __syncthreads();
      cooperative_groups::this_cluster().barrier_arrive();
      write_combs(tile);
      cluster_wait();  // pre of all tokens is here
      mix_tile(tile);
      tile = next;
    }
  }
};

template <int kRows, int kTokens>
__global__ void __launch_bounds__(kTileThreads, 1)
    read_token_tiles(const __grid_constant__ StreamCall c, const __grid_constant__ TileCut cut) {
  extern __shared__ __align__(16) unsigned char tile_memory[];
  let_next_start();
  const TileBlock<kRows, kTokens> block{
      .c = c,
      .cut = cut,
      .m = *reinterpret_cast<typename Tile<kRows, kTokens>::Memory*>(tile_memory),
      .rank = static_cast<int>(cluster_rank())};
  block.run();
}

}  // namespace fathom::cuda
