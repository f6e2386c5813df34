// mhc_pre and mhc_head of few tokens, where waits decide: a cluster of 16 blocks has some tokens, a
// block a sixteenth of the channels of all four streams.
//
// A warp has some rows of fn and some streams. Its weights, all that the token loop reads of fn,
// are in registers before the previous kernel is done. A lane has of each row and stream
//
//   channels  128 i + 4 lane + 0 .. 3,  i < kQuads,   and  128 kQuads + 2 lane + 0, 1   if kPair
//
// of the block's 128 kQuads + 64 kPair. Then each block sends its sums to those that want them:
// pre and the squares go to all, which mix their own channels; the rest to the block that writes
// post and comb of the token. Sums of warps and blocks are added in order: a token has the same
// bits whatever tokens are beside it.
#pragma once

#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/mhc/mhc_pre/token_numbers.cuh"

namespace fathom::cuda {

inline constexpr int kFewBlocks = 16;  ///< of a cluster
inline constexpr int kFewWarps = 16;
inline constexpr int kFewThreads = kFewWarps * kWarp;
inline constexpr int kMostFewTokens = 8;  ///< of a cluster
inline constexpr int kMixThreads = kFewThreads - kMostFewTokens * kWarp;

static_assert(kFewWarps == kFewBlocks, "a warp sends the sums of its block to one block");

/// How the warps of a block share the rows of fn and the streams.
template <int kRows>
struct FewShare {
  static constexpr int kGroups = kRows == kPreRows ? 8 : 4;  ///< of rows
  static constexpr int kRowsOfWarp = kRows / kGroups;
  static constexpr int kParts = kFewWarps / kGroups;  ///< of the streams
  static constexpr int kStreamsOfWarp = kStreams / kParts;
  static_assert(kRowsOfWarp * kGroups == kRows && kStreamsOfWarp * kParts == kStreams);
};

template <int kRows>
struct FewMemory {
  float partial[kMostFewTokens][FewShare<kRows>::kParts][kSums<kRows>];
  float received[kFewBlocks][kMostFewTokens][kSums<kRows>];  ///< by the block they come from
  float4 pre[kMostFewTokens];
  float softened[kMostFewTokens][kStreams * kStreams];  ///< rows of comb behind their softmax
  Affine<kRows> affine;
};

/// The channels of a lane in one row of a stream, of any type of word.
template <class Quad, class Pair, int kQuads, bool kPair>
struct LaneChannels {
  Quad quads[kQuads > 0 ? kQuads : 1];
  Pair pair;

  /// Calls load_quad(place, i) and load_pair(place) with the first channel of each.
  template <class LoadQuad, class LoadPair>
  __device__ __forceinline__ void load(const LoadQuad& load_quad, const LoadPair& load_pair) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      quads[i] = load_quad(4 * kWarp * i + 4 * lane_id());
    if constexpr (kPair) pair = load_pair(4 * kWarp * kQuads + 2 * lane_id());
  }
};

template <int kRows, int kQuads, bool kPair>
struct FewBlock {
  using Share = FewShare<kRows>;
  using Weights = LaneChannels<uint4, uint2, kQuads, kPair>;
  using Channels = LaneChannels<uint2, uint32_t, kQuads, kPair>;  ///< of bf16

  static constexpr int kChannels = 4 * kWarp * kQuads + 2 * kWarp * kPair;  ///< of the block

  const StreamCall& c;
  FewMemory<kRows>& m;
  int rank;
  int cluster, clusters;

  __device__ int group() const { return warp_id() % Share::kGroups; }

  __device__ int part() const { return warp_id() / Share::kGroups; }

  /// Tokens of this cluster: cluster, cluster + clusters, ...
  __device__ int num_tokens() const { return (c.T - cluster + clusters - 1) / clusters; }

  __device__ int64_t token(int i) const { return cluster + int64_t{clusters} * i; }

  __device__ int first_channel() const { return rank * kChannels; }

  __device__ __forceinline__ void load_weights(
      Weights (&w)[Share::kRowsOfWarp][Share::kStreamsOfWarp]) const {
    const uint64_t policy = weights_policy(clusters == 1);
#pragma unroll
    for (int r = 0; r < Share::kRowsOfWarp; ++r) {
      const float* row = c.fn + (group() * Share::kRowsOfWarp + r) * c.fn_stride + first_channel();
#pragma unroll
      for (int s = 0; s < Share::kStreamsOfWarp; ++s) {
        const float* from = row + int64_t{part() * Share::kStreamsOfWarp + s} * c.D;
        w[r][s].load([&](int place) { return load_16(from + place, policy); },
                     [&](int place) { return load_8_if(from + place, true); });
      }
    }
  }

  __device__ __forceinline__ void load_token(int64_t t,
                                             Channels (&x)[Share::kStreamsOfWarp]) const {
#pragma unroll
    for (int s = 0; s < Share::kStreamsOfWarp; ++s) {
      const Bf16* from = c.stream(t, part() * Share::kStreamsOfWarp + s) + first_channel();
      x[s].load([&](int place) { return *reinterpret_cast<const uint2*>(from + place); },
                [&](int place) { return *reinterpret_cast<const uint32_t*>(from + place); });
    }
  }

  /// The sums of one token over this block's channels, by its warps.
  __device__ __forceinline__ void sum_token(
      const Weights (&w)[Share::kRowsOfWarp][Share::kStreamsOfWarp],
      const Channels (&x)[Share::kStreamsOfWarp],
      int i) const {
    float sums[Share::kRowsOfWarp] = {};
    float squares = 0.0f;
    const auto add = [&](uint32_t pair, int s, const auto& weights_of) {
      const float low = low_bf16(pair);
      const float high = high_bf16(pair);
      if (group() == 0) squares = fmaf(high, high, fmaf(low, low, squares));
#pragma unroll
      for (int r = 0; r < Share::kRowsOfWarp; ++r) {
        const uint2 weights = weights_of(w[r][s]);
        sums[r] = fmaf(__uint_as_float(weights.x), low, sums[r]);
        sums[r] = fmaf(__uint_as_float(weights.y), high, sums[r]);
      }
    };
#pragma unroll
    for (int s = 0; s < Share::kStreamsOfWarp; ++s) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        add(x[s].quads[q].x, s,
            [&](const Weights& v) { return make_uint2(v.quads[q].x, v.quads[q].y); });
        add(x[s].quads[q].y, s,
            [&](const Weights& v) { return make_uint2(v.quads[q].z, v.quads[q].w); });
      }
      if constexpr (kPair) add(x[s].pair, s, [&](const Weights& v) { return v.pair; });
    }
    float* to = m.partial[i][part()];
#pragma unroll
    for (int r = 0; r < Share::kRowsOfWarp; ++r) {
      const float sum = combine_lanes(sums[r], Add());
      if (lane_id() == 0) to[group() * Share::kRowsOfWarp + r] = sum;
    }
    if (group() != 0) return;
    squares = combine_lanes(squares, Add());
    if (lane_id() == 0) to[kRows] = squares;
  }

  /// True for the block that writes post and comb of token i of the cluster.
  __device__ static bool owns(int block, int i) {
    return kRows == kPreRows && block == i;
  }

  /// A warp for each block of the cluster, a lane for each sum.
  __device__ __forceinline__ void send_sums() const {
    const int q = lane_id();
    const int to = warp_id();
    for (int i = 0; i < num_tokens(); ++i) {
      const bool goes = q < kStreams || q == kRows || (q < kRows && owns(to, i));
      if (!goes) continue;
      float sum = m.partial[i][0][q];
#pragma unroll
      for (int p = 1; p < Share::kParts; ++p)
        sum += m.partial[i][p][q];
      *in_block(&m.received[rank][i][q], static_cast<unsigned>(to)) = sum;
    }
    __syncwarp();
  }

  /// pre of token i, and, for its owner, post and the softened rows of comb; by warp i.
  __device__ __forceinline__ void find_numbers(int i) const {
    const int q = lane_id();
    const bool has = q < kStreams || q == kRows || (q < kRows && owns(rank, i));
    float sum = 0.0f;
    if (has) {
#pragma unroll
      for (int block = 0; block < kFewBlocks; ++block)
        sum += m.received[block][i][q];
    }
    const float z = logit_of_lane<kRows>(c, m.affine, sum);
    if (q < kStreams) reinterpret_cast<float*>(&m.pre[i])[q] = sigmoid(z) + c.hc_eps;
    if (!owns(rank, i)) return;
    const float softened = soften_row_of_lanes(z, c.hc_eps);
    if (q < kStreams || q >= kRows) return;
    if (q < 2 * kStreams) {
      c.post[token(i) * c.post_stride + q - kStreams] = 2.0f * sigmoid(z);
    } else {
      m.softened[i][q - 2 * kStreams] = softened;
    }
  }

  /// Four channels of all streams of one token: what a thread mixes at once.
  struct MixItem {
    int i;
    int channel;
    uint2 x[kStreams];
  };

  __device__ __forceinline__ MixItem load_item(int number) const {
    MixItem item;
    item.i = number / (kChannels / 4);
    item.channel = first_channel() + 4 * (number - item.i * (kChannels / 4));
    if (item.i >= num_tokens()) return item;
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      item.x[j] = *reinterpret_cast<const uint2*>(c.stream(token(item.i), j) + item.channel);
    return item;
  }

  __device__ __forceinline__ void mix_item(const MixItem& item) const {
    float streams[kStreams][4];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      streams[j][0] = low_bf16(item.x[j].x);
      streams[j][1] = high_bf16(item.x[j].x);
      streams[j][2] = low_bf16(item.x[j].y);
      streams[j][3] = high_bf16(item.x[j].y);
    }
    float x[4];
    mix(streams, m.pre[item.i], x);
    *reinterpret_cast<uint2*>(c.x + token(item.i) * c.x_stride + item.channel) =
        make_uint2(pair_of_floats(x[0], x[1]), pair_of_floats(x[2], x[3]));
  }

  __device__ __forceinline__ void run() const {
    cluster_arrive_relaxed();  // blocks may be sent to once they have started
    Weights w[Share::kRowsOfWarp][Share::kStreamsOfWarp];
    load_weights(w);
    m.affine.bring(c);
    wait_for_previous();
    const int count = num_tokens();
    Channels x[Share::kStreamsOfWarp];
    load_token(token(0), x);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      Channels next[Share::kStreamsOfWarp];
      if (i + 1 < count) load_token(token(i + 1), next);
      sum_token(w, x, i);
#pragma unroll
      for (int s = 0; s < Share::kStreamsOfWarp; ++s)
        x[s] = next[s];
    }
    // The first eight warps find the numbers of a token each, the others mix.
    const int mixer = static_cast<int>(threadIdx.x) - kMostFewTokens * kWarp;
    MixItem item{};
    if (mixer >= 0) item = load_item(mixer);
    __syncthreads();
    cluster_wait();
    send_sums();
    cluster_sync();
    if (warp_id() < count) find_numbers(warp_id());
    __syncthreads();
    if (mixer < 0) {
      const int i = warp_id();
      if (i < count && lane_id() == 0 && owns(rank, i)) write_comb(c, token(i), m.softened[i]);
      return;
    }
#pragma unroll 1
    for (int number = mixer; number < count * (kChannels / 4); number += kMixThreads) {
      if (number != mixer) item = load_item(number);
      mix_item(item);
    }
  }
};

template <int kRows, int kQuads, bool kPair>
__global__ void __launch_bounds__(kFewThreads, 1)
    read_few_tokens(const __grid_constant__ StreamCall c) {
  extern __shared__ __align__(16) unsigned char few_memory[];
  let_next_start();
  const FewBlock<kRows, kQuads, kPair> block{.c = c,
                                             .m = *reinterpret_cast<FewMemory<kRows>*>(few_memory),
                                             .rank = static_cast<int>(cluster_rank()),
                                             .cluster = static_cast<int>(blockIdx.x) / kFewBlocks,
                                             .clusters = static_cast<int>(gridDim.x) / kFewBlocks};
  block.run();
}

// ---- on the host ----

/// A token a cluster, as far as there is room for all clusters at once.
inline int64_t few_clusters(const Exec& ex, int64_t T, const ClusterNeeds& needs) {
  const int64_t room = clusters_at_once(ex.device->ordinal, needs);
  return std::max(std::min(T, room), ceil_div(T, int64_t{kMostFewTokens}));
}

/// Lets a kernel run in clusters of more than eight blocks.
inline Status allow_large_cluster(const void* kernel) {
  return cuda_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
      "asking for a large cluster");
}

/// Channels of a stream of one block, in steps of 64.
inline constexpr int kFewStep = 64;

/// The widths of models.
inline bool is_few_width(int64_t D) {
  return D == 1024 || D == 4096 || D == 5120 || D == 7168;
}

/// Calls f.template operator()<kQuads, kPair>() for such a width.
template <class F>
auto with_few_width(int64_t D, F f) {
  switch (D / (kFewStep * kFewBlocks)) {
    case 1:
      return f.template operator()<0, true>();
    case 4:
      return f.template operator()<2, false>();
    case 5:
      return f.template operator()<2, true>();
    default:
      return f.template operator()<3, true>();
  }
}

}  // namespace fathom::cuda
