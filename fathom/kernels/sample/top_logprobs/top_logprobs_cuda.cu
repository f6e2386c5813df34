// A cluster of blocks a row. A warp takes pieces of the row (row_pieces.cuh) and keeps what it has
// found: the largest logit, the mass relative to it, and the best 32 logits, one a lane, in order.
// What warps found is put together by pairs, in a block and then in the cluster.
//
//   piece   at least K logits are no smaller than the K-th largest of the lanes' own largest ones;
//           those that reach it are few, and each is put in its place among the best
//   pair    of two ordered lists the better one of lanes i and 31 - i: the best 32, in an order
//           that five exchanges mend (Batcher's bitonic merge)
//
// The best logits of a row are the same however it is split; its mass is added in one order.
#include <cmath>

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sample/row_pieces.cuh"
#include "fathom/kernels/sample/top_logprobs/top_logprobs.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kCluster = 8;  // blocks that share a row, no more than a block has warps

/// A logit and its place as one number, larger for what comes first. 0 comes behind all of them.
using Ranked = unsigned long long;

__device__ Ranked ranked(float logit, int token) {
  const uint32_t key = key_of_bits(__float_as_uint(logit + 0.0f));  // -0 + 0 = 0
  return Ranked{key} << 32 | ~static_cast<uint32_t>(token);
}

__device__ float logit_of(Ranked entry) {
  return __uint_as_float(bits_of_key(static_cast<uint32_t>(entry >> 32)));
}

__device__ int token_of(Ranked entry) {
  return static_cast<int>(~static_cast<uint32_t>(entry));
}

/// What was found of a part of a row, in the lanes of a warp.
struct Part {
  Ranked best;   // lane i has the i-th best
  double mass;   // relative to the largest logit; as what follows the same in all lanes
  float peak;    // the largest logit, NaN left out
  int unusable;  // NaN or +inf was seen

  __device__ void add_mass(float other_peak, double other_mass, float factor) {
    const float top = fmaxf(peak, other_peak);
    if (top == -INFINITY) return;
    mass = mass * double{exp_below(peak, top, factor)} +
           other_mass * double{exp_below(other_peak, top, factor)};
    peak = top;
  }

  /// Puts an entry in its place.
  __device__ void insert(Ranked entry) {
    Ranked before = __shfl_up_sync(kAllLanes, best, 1);
    if (lane_id() == 0) before = ~Ranked{0};
    if (entry > best) best = min(entry, before);
  }

  /// Inserts the entries of all lanes that are among the best k.
  __device__ void insert_lanes(Ranked entry, int k) {
    Ranked worst = __shfl_sync(kAllLanes, best, k - 1);
    uint32_t better = __ballot_sync(kAllLanes, entry > worst);
    while (better != 0) {
      const int lane = __ffs(static_cast<int>(better)) - 1;
      insert(__shfl_sync(kAllLanes, entry, lane));
      worst = __shfl_sync(kAllLanes, best, k - 1);
      const uint32_t lanes_behind = ~((2u << lane) - 1);
      better = __ballot_sync(kAllLanes, entry > worst) & lanes_behind;
    }
  }

  /// Merges the best of another list, which lanes read in reverse order.
  __device__ void merge_best(Ranked reversed) {
    best = max(best, reversed);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const Ranked other = __shfl_xor_sync(kAllLanes, best, offset);
      best = (lane_id() & offset) == 0 ? max(best, other) : min(best, other);
    }
  }
};

__device__ Part nothing() {
  return {0, 0.0, -INFINITY, 0};
}

/// A part in shared memory.
struct StoredPart {
  Ranked best[32];
  double mass;
  float peak;
  int unusable;

  __device__ void store(const Part& part) {
    best[lane_id()] = part.best;
    if (lane_id() == 0) {
      mass = part.mass;
      peak = part.peak;
      unusable = part.unusable;
    }
  }

  __device__ Part load() const { return {best[lane_id()], mass, peak, unusable}; }

  __device__ void merge_into(Part& part, float factor) const {
    part.merge_best(best[31 - lane_id()]);
    part.add_mass(peak, mass, factor);
    part.unusable |= unusable;
  }
};

/// The k-th largest of the lanes' values, 1 <= k <= 32, in all lanes. No value is NaN.
__device__ float kth_of_lanes(float value, int k) {
  int before = 0;
#pragma unroll
  for (int lane = 0; lane < 32; ++lane) {
    const float other = __shfl_sync(kAllLanes, value, lane);
    before += other > value || (other == value && lane < lane_id()) ? 1 : 0;
  }
  const uint32_t found = __ballot_sync(kAllLanes, before == k - 1);
  return __shfl_sync(kAllLanes, value, __ffs(static_cast<int>(found)) - 1);
}

/// Adds a piece of a row to what a warp has found.
template <class Row>
__device__ void add_piece(const Row& row, int piece, int k, float factor, Part& part) {
  PieceValues x;
  if (load_logits(row, piece, x)) part.unusable = 1;
  float own_peak = -INFINITY;
  for_values(x, [&](float z) { own_peak = fmaxf(own_peak, z); });
  const float peak = combine_lanes(own_peak, Max{});
  part.add_mass(peak, softmax_mass(x, peak, factor), factor);

  const float floor = kth_of_lanes(own_peak, k);
  uint32_t left = 0;  // bit 4 j + c: value c of quad j reaches the floor
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      left |= x[j][c] >= floor ? 1u << (4 * j + c) : 0u;
  }
  while (__any_sync(kAllLanes, left != 0)) {
    Ranked entry = 0;
    if (left != 0) {
      const int bit = __ffs(static_cast<int>(left)) - 1;
      left &= left - 1;
      const int token = first_token(piece) + bit / 4 * 128 + bit % 4;
      // Read again, since registers have no numbers. What lies behind the row reaches a floor of
      // -inf as well.
      if (token < row.V) entry = ranked(row.data[token], token);
    }
    part.insert_lanes(entry, k);
  }
}

/// Puts the parts of the first `count` warps, a power of two, together in that of warp 0. By all
/// threads of the block. Part 0 in shared memory is not touched.
__device__ void merge_warps(StoredPart* parts, Part& part, int count, float factor) {
  const int warp = warp_id();
  for (int half = count / 2; half > 0; half /= 2) {
    if (warp >= half && warp < 2 * half) parts[warp].store(part);
    __syncthreads();
    if (warp < half) parts[warp + half].merge_into(part, factor);
  }
}

struct Output {
  int k;
  Rows<int32_t> ids;
  Rows<float> logprobs;
  float* largest;

  /// By a warp.
  __device__ void write(int64_t t, const Part& part) const {
    const bool bad = part.unusable != 0 || part.peak == -INFINITY;
    const double norm = double{part.peak} + log(part.mass);
    if (lane_id() == 0) largest[t] = bad ? NAN : part.peak;
    if (lane_id() >= k) return;
    ids[t][lane_id()] = bad ? -1 : token_of(part.best);
    logprobs[t][lane_id()] = bad ? NAN : static_cast<float>(double{logit_of(part.best)} - norm);
  }
};

template <bool kVectors>
__global__ void __launch_bounds__(kThreads, 2)
    find_best(const Rows<const float> logits, int V, const Output output) {
  __shared__ StoredPart parts[kWarps];
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x / kCluster;
  const PieceRow<kVectors, LogitValues> row{logits[t], V};
  const float factor = octaves_per_logit(1.0f);
  Part part = nothing();
  for (int piece = static_cast<int>(cluster_rank()) * kWarps + warp_id(); piece < row.num_pieces();
       piece += kCluster * kWarps)
    add_piece(row, piece, output.k, factor, part);
  merge_warps(parts, part, kWarps, factor);
  if (warp_id() == 0) parts[0].store(part);
  cluster_sync();
  if (cluster_rank() == 0) {
    if (warp_id() < kCluster) part = in_block(&parts[0], static_cast<unsigned>(warp_id()))->load();
    merge_warps(parts, part, kCluster, factor);
    if (warp_id() == 0) output.write(t, part);
  }
  cluster_sync();  // shared memory that rank 0 reads stays until it has
}

template <bool kVectors>
Status top_logprobs(Exec& ex, const TopLogprobs::Args& a) {
  const LaunchShape shape{
      .blocks = a.logits.dim(0) * kCluster, .threads = kThreads, .cluster = kCluster};
  const Output output{.k = static_cast<int>(a.ids.dim(1)),
                      .ids = rows_of<int32_t>(a.ids),
                      .logprobs = rows_of<float>(a.logprobs),
                      .largest = a.largest.as<float>()};
  return launch_kernel(ex, find_best<kVectors>, shape, rows_of<const float>(a.logits),
                       static_cast<int>(a.logits.dim(1)), output);
}

bool is_aligned(const TopLogprobs::Args& a) {
  return takes_vectors(a.logits);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<TopLogprobs> top_logprobs_cuda{
    {"vectors", sm(90), "K<=32, V<=1073741824", kTraits, top_logprobs<true>, MathUnit::kF32,
     is_aligned},
    {"elements", sm(90), "K<=32, V<=1073741824", kTraits, top_logprobs<false>},
};

}  // namespace fathom
