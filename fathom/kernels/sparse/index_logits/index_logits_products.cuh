// Scores of e4m3 and e2m1 rows of 128 channels on the FP8 tensor cores of Hopper, up to 64 heads:
// what does not depend on how keys come (index_logits_ring.cuh, index_logits_tiles.cuh).
//
// A warpgroup is a block of its own, four on a multiprocessor: while one multiplies, others weigh
// what they have multiplied, and all wait for memory. It takes some tokens of a request, whose
// queries stay in shared memory, and 64 keys at a time, which the product reads from registers.
// Keys are the rows of a product and heads its columns: d[64 keys x 64 heads] = keys queries^T in
// four steps of 32 channels. A lane holds sixteen heads of two keys,
//
//   d[4 j + 2 h + e]   key 16 w + 8 h + lane / 4, head 8 j + 2 (lane % 4) + e,   w: the warp
//
// weighs and adds them, and the four lanes of a key add up theirs.
#pragma once

#include <cmath>

#include "fathom/kernels/cuda/products/warpgroup_products.cuh"
#include "fathom/kernels/sparse/index_logits/index_logits_codes.cuh"

namespace fathom::index_logits {

/// What a lane has of a tile: rows lane / 4 and lane / 4 + 8 of its warp's sixteen.
template <class Rows>
struct KeyTile {
  uint4 chunks[2][Rows::kChunks];
  uint32_t scales[2];
};

// ---- products ----

/// Starts the products of a tile of keys with the heads of a query.
__device__ __forceinline__ void start_products(const DecodedRows& rows,
                                               const std::byte* query_codes,
                                               float (&d)[32]) {
  const uint64_t heads = cuda::rows_operand(cuda::shared_address(query_codes));
  cuda::begin_products();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t a[4] = {rows.words[0][2 * step], rows.words[1][2 * step],
                           rows.words[0][2 * step + 1], rows.words[1][2 * step + 1]};
    cuda::multiply_codes(d, a, heads + static_cast<uint64_t>(step) * (32 / 16), step > 0);
  }
  cuda::commit_products();
}

/// The logit of key lane / 4 + 8 (lane % 2) of the warp, of which the four lanes of a key have each
/// sixteen heads.
__device__ __forceinline__ float weigh_heads(const float (&d)[32],
                                             const float (&weights)[kWeightsOfLane]) {
  float sums[2][2] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = d[4 * j + 2 * h + e];
        sums[h][e] = fmaf(x + fabsf(x), weights[2 * j + e], sums[h][e]);  // NaN stays
      }
    }
  }
  const float first = sums[0][0] + sums[0][1];
  const float second = sums[1][0] + sums[1][1];
  const bool odd = (cuda::lane_id() & 1) != 0;
  float sum = odd ? second : first;
  sum += __shfl_xor_sync(kAllLanes, odd ? first : second, 1);
  return sum + __shfl_xor_sync(kAllLanes, sum, 2);
}

__device__ __forceinline__ void load_weights(const QueryMemory& memory,
                                             int query,
                                             float (&weights)[kWeightsOfLane]) {
  const auto* quads =
      reinterpret_cast<const float4*>(memory.weights_of(query, cuda::lane_id() % 4));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 quad = quads[i];
    weights[4 * i] = quad.x;
    weights[4 * i + 1] = quad.y;
    weights[4 * i + 2] = quad.z;
    weights[4 * i + 3] = quad.w;
  }
}

/// Weighs sums and writes logits.
template <bool kOneQuery>
class LogitWriter {
 public:
  /// Queries have been laid out.
  __device__ LogitWriter(const Call& c, const Queries& queries, const QueryMemory& memory)
      : c_(c), queries_(queries), memory_(memory) {
    const int lane = cuda::lane_id();
    offset_ = kWarpKeys * cuda::warp_id() + 8 * (lane & 1) + lane / 4;
    most_ = lane % 4 < 2 ? c.columns : 0;  // two of the lanes that have a logit write nothing
    if constexpr (kOneQuery) load(0);
  }

  /// Of the tile that begins at `begin` and a query.
  __device__ __forceinline__ void write(int begin,
                                        int query,
                                        const float (&sums)[32],
                                        float factor) {
    if constexpr (!kOneQuery) load(query);
    const float logit = weigh_heads(sums, weights_) * factor;
    const int j = begin + offset_;
    if (j < most_) row_[j] = range_.sees(j) ? logit : -INFINITY;
  }

 private:
  __device__ __forceinline__ void load(int query) {
    load_weights(memory_, query, weights_);
    range_ = queries_.range(query);
    row_ = c_.logits[queries_.token + query];
  }

  const Call& c_;
  const Queries& queries_;
  QueryMemory memory_;
  int offset_;  ///< of this lane's key in a tile
  int most_;    ///< keys that are written are below it
  float weights_[kWeightsOfLane];
  Call::Range range_;
  float* row_;
};

}  // namespace fathom::index_logits
