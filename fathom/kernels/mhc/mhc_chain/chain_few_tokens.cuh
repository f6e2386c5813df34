// mhc_chain of few tokens: the kernel of mhc_pre (mhc_pre/few_tokens.cuh), with what comes before
// and after it in the same launch. A cluster of 16 blocks has a token or a few, a block a sixteenth
// of the channels of all streams.
//
//   1  all threads    four channels of all streams of a token each: new streams to memory and to
//                     shared memory, from where all that follows reads them
//   2  all warps      sums, sent to the blocks; pre, post, rows of comb        as in mhc_pre
//   3  first half     Sinkhorn's iteration
//      second half    x, and the squares of this block's channels to all blocks
//   4  second half    h, once the squares of all blocks are there
//
// The first half arrives at the barrier of the squares before Sinkhorn, so that nobody waits for
// it. Sums have one order: a token has the same bits whatever tokens are beside it.
#pragma once

#include "fathom/kernels/mhc/mhc_pre/few_tokens.cuh"

namespace fathom::cuda {

/// What mhc_chain has besides the operands of mhc_pre; strides in elements. The call's streams are
/// the new ones, its x is h, its post and comb are those of the next sub-layer.
struct ChainCall {
  StreamCall next;
  Bf16* out;  ///< the new streams
  const Bf16* y;
  int64_t y_stride;
  const Bf16* streams;
  int64_t token_stride, stream_stride;
  const float* post;
  int64_t post_stride;
  const float* comb;
  int64_t comb_token, comb_stride;
  const Bf16* norm;
  float norm_eps;
};

template <int kChannels>
struct ChainMemory {
  static constexpr int kItems = kChannels / 4;  ///< of a token: four channels each

  FewMemory<kPreRows> few;
  uint2 streams[kMostFewTokens][kStreams][kItems];  ///< new ones
  uint2 x[kMostFewTokens][kItems];
  uint2 norm[kItems];
  float squares[kMostFewTokens][kItems];
  float received_squares[kFewBlocks][kMostFewTokens];  ///< by the block they come from
};

template <int kQuads, bool kPair>
struct ChainBlock {
  using Few = FewBlock<kPreRows, kQuads, kPair>;
  using Memory = ChainMemory<Few::kChannels>;
  static constexpr int kItems = Memory::kItems;
  static_assert(kItems <= kFewThreads, "a thread brings four weights of the norm");

  const ChainCall& c;
  Memory& m;
  Few few;

  __device__ __forceinline__ void bring_norm() const {
    const auto item = static_cast<int>(threadIdx.x);
    if (item < kItems)
      m.norm[item] = *reinterpret_cast<const uint2*>(c.norm + few.first_channel() + 4 * item);
  }

  static __device__ __forceinline__ void unpack_four(uint2 packed, float (&out)[4]) {
    out[0] = low_bf16(packed.x);
    out[1] = high_bf16(packed.x);
    out[2] = low_bf16(packed.y);
    out[3] = high_bf16(packed.y);
  }

  static __device__ __forceinline__ uint2 pack_four(const float (&v)[4]) {
    return make_uint2(pair_of_floats(v[0], v[1]), pair_of_floats(v[2], v[3]));
  }

  /// Products and sums rounded apart, y first and then the streams in order: the bits of mhc_post.
  __device__ __forceinline__ void write_streams(int i, int item) const {
    const int64_t t = few.token(i);
    const int channel = few.first_channel() + 4 * item;
    const uint2 held_y = *reinterpret_cast<const uint2*>(c.y + t * c.y_stride + channel);
    uint2 held[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      held[j] = *reinterpret_cast<const uint2*>(c.streams + t * c.token_stride +
                                                j * c.stream_stride + channel);
    }
    float post[kStreams];
    float comb[kStreams][kStreams];
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      post[k] = c.post[t * c.post_stride + k];
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
        comb[j][k] = c.comb[t * c.comb_token + j * c.comb_stride + k];
    }
    float y[4];
    float x[kStreams][4];
    unpack_four(held_y, y);
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      unpack_four(held[j], x[j]);
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      float sum[4];
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        sum[d] = __fmul_rn(post[k], y[d]);
#pragma unroll
        for (int j = 0; j < kStreams; ++j)
          sum[d] = __fadd_rn(sum[d], __fmul_rn(comb[j][k], x[j][d]));
      }
      const uint2 packed = pack_four(sum);
      Bf16* to = c.out + t * c.next.token_stride + k * c.next.stream_stride + channel;
      *reinterpret_cast<uint2*>(to) = packed;
      m.streams[i][k][item] = packed;
    }
  }

  __device__ __forceinline__ void load_token(
      int i, typename Few::Channels (&x)[Few::Share::kStreamsOfWarp]) const {
#pragma unroll
    for (int s = 0; s < Few::Share::kStreamsOfWarp; ++s) {
      const uint2* from = m.streams[i][few.part() * Few::Share::kStreamsOfWarp + s];
      x[s].load([&](int place) { return from[place / 4]; },
                [&](int place) { return reinterpret_cast<const uint32_t*>(from)[place / 2]; });
    }
  }

  /// x of four channels, and the sum of their squares.
  __device__ __forceinline__ void mix_item(int i, int item) const {
    float streams[kStreams][4];
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      unpack_four(m.streams[i][j][item], streams[j]);
    float x[4];
    mix(streams, m.few.pre[i], x);
    const uint2 packed = pack_four(x);
    m.x[i][item] = packed;
    unpack_four(packed, x);
    m.squares[i][item] = fmaf(x[3], x[3], fmaf(x[2], x[2], fmaf(x[1], x[1], x[0] * x[0])));
  }

  /// The squares of token i over this block's channels, by one warp, to all blocks.
  __device__ __forceinline__ void send_squares(int i) const {
    float sum = 0.0f;
    for (int item = lane_id(); item < kItems; item += kWarp)
      sum += m.squares[i][item];
    sum = combine_lanes(sum, Add());
    if (lane_id() < kFewBlocks)
      *in_block(&m.received_squares[few.rank][i], static_cast<unsigned>(lane_id())) = sum;
  }

  __device__ __forceinline__ void norm_item(int i, int item) const {
    float sum = 0.0f;
#pragma unroll
    for (int block = 0; block < kFewBlocks; ++block)
      sum += m.received_squares[block][i];
    const float r = 1.0f / sqrtf(sum / static_cast<float>(c.next.D) + c.norm_eps);
    float x[4];
    float weight[4];
    unpack_four(m.x[i][item], x);
    unpack_four(m.norm[item], weight);
#pragma unroll
    for (int d = 0; d < 4; ++d)
      x[d] = x[d] * r * weight[d];
    auto* to = c.next.x + few.token(i) * c.next.x_stride + few.first_channel() + 4 * item;
    *reinterpret_cast<uint2*>(to) = pack_four(x);
  }

  /// Calls f(token of the cluster, item) for this thread's share of all, the threads numbered
  /// `thread` of `threads`.
  template <class F>
  __device__ __forceinline__ void for_items(int thread, int threads, F f) const {
#pragma unroll 1
    for (int n = thread; n < few.num_tokens() * kItems; n += threads)
      f(n / kItems, n % kItems);
  }

  __device__ __forceinline__ void run() const {
    using Share = typename Few::Share;
    cluster_arrive_relaxed();  // blocks may be sent to once they have started
    typename Few::Weights w[Share::kRowsOfWarp][Share::kStreamsOfWarp];
    few.load_weights(w);
    m.few.affine.bring(c.next);
    bring_norm();
    wait_for_previous();
    const auto thread = static_cast<int>(threadIdx.x);
    for_items(thread, kFewThreads, [&](int i, int item) { write_streams(i, item); });
    __syncthreads();
    const int count = few.num_tokens();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      typename Few::Channels x[Share::kStreamsOfWarp];
      load_token(i, x);
      few.sum_token(w, x, i);
    }
    __syncthreads();
    cluster_wait();
    few.send_sums();
    cluster_sync();
    if (warp_id() < count) few.find_numbers(warp_id());
    __syncthreads();
    const int mixer = thread - kMostFewTokens * kWarp;
    if (mixer < 0) {
      cluster_arrive_relaxed();  // it sends nothing
      const int i = warp_id();
      if (i < count && lane_id() == 0 && Few::owns(few.rank, i))
        write_comb(c.next, few.token(i), m.few.softened[i]);
      __syncwarp();
      cluster_wait();
      return;
    }
    for_items(mixer, kMixThreads, [&](int i, int item) { mix_item(i, item); });
    sync_mixers();
    const int i = mixer / kWarp;
    if (i < count) send_squares(i);
    cluster_sync();
    for_items(mixer, kMixThreads, [&](int t, int item) { norm_item(t, item); });
  }

  static __device__ __forceinline__ void sync_mixers() {
    asm volatile("bar.sync 1, %0;" ::"n"(kMixThreads) : "memory");
  }
};

template <int kQuads, bool kPair>
__global__ void __launch_bounds__(kFewThreads, 1)
    chain_few_tokens(const __grid_constant__ ChainCall c) {
  using Block = ChainBlock<kQuads, kPair>;
  extern __shared__ __align__(16) unsigned char chain_memory[];
  let_next_start();
  auto& m = *reinterpret_cast<typename Block::Memory*>(chain_memory);
  const Block block{.c = c,
                    .m = m,
                    .few = {.c = c.next,
                            .m = m.few,
                            .rank = static_cast<int>(cluster_rank()),
                            .cluster = static_cast<int>(blockIdx.x) / kFewBlocks,
                            .clusters = static_cast<int>(gridDim.x) / kFewBlocks}};
  block.run();
}

}  // namespace fathom::cuda
