#include <climits>
#include <cmath>

#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sample/argmax/argmax.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

constexpr int kThreads = 512;
constexpr int kCluster = 8;  // blocks that share a row
constexpr int kWide = 4;     // logits of one load

/// What a thread, a warp, a block and then a cluster found of a row.
struct Peak {
  float max;      // NaN left out
  int32_t index;  // lowest of max
  int32_t unusable;

  __device__ void see(float value, int32_t i) {
    if (isnan(value) || value == INFINITY) unusable = 1;
    if (value > max) {
      max = value;
      index = i;
    }
  }

  __device__ void merge(const Peak& other) {
    unusable |= other.unusable;
    if (other.max > max || (other.max == max && other.index < index)) {
      max = other.max;
      index = other.index;
    }
  }
};

// Nothing above -inf was seen: any index that was is lower.
__device__ Peak no_peak() {
  return {-INFINITY, INT_MAX, 0};
}

__device__ Peak merge_lanes(Peak peak) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Peak other{__shfl_xor_sync(0xFFFFFFFFu, peak.max, offset),
                     __shfl_xor_sync(0xFFFFFFFFu, peak.index, offset),
                     __shfl_xor_sync(0xFFFFFFFFu, peak.unusable, offset)};
    peak.merge(other);
  }
  return peak;
}

// A cluster of blocks a row. Threads walk through the row together, kWide logits each, so that any
// split of the row gives the same answer: the lowest index of the largest value.
template <bool kVectors>
__global__ void __launch_bounds__(kThreads)
    find_peaks(const float* logits, int64_t stride, int V, int32_t* ids, int32_t* bad) {
  __shared__ Peak of_warp[kThreads / 32];
  __shared__ Peak of_block;
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x / kCluster;
  const float* row = logits + t * stride;
  const int first = static_cast<int>(cluster_rank()) * kThreads + static_cast<int>(threadIdx.x);
  constexpr int kStep = kCluster * kThreads;
  Peak peak = no_peak();
  if constexpr (kVectors) {
    const auto* wide = reinterpret_cast<const float4*>(row);
#pragma unroll 4
    for (int i = first; i < V / kWide; i += kStep) {
      const float4 values = wide[i];
      peak.see(values.x, kWide * i);
      peak.see(values.y, kWide * i + 1);
      peak.see(values.z, kWide * i + 2);
      peak.see(values.w, kWide * i + 3);
    }
    const int behind = V / kWide * kWide + first;
    if (behind < V) peak.see(row[behind], behind);
  } else {
    for (int i = first; i < V; i += kStep)
      peak.see(row[i], i);
  }
  peak = merge_lanes(peak);
  if (lane_id() == 0) of_warp[warp_id()] = peak;
  __syncthreads();
  if (warp_id() == 0) {
    peak = merge_lanes(lane_id() < kThreads / 32 ? of_warp[lane_id()] : no_peak());
    if (lane_id() == 0) of_block = peak;
  }
  cluster_sync();
  if (cluster_rank() == 0 && threadIdx.x == 0) {
    for (unsigned rank = 1; rank < kCluster; ++rank)
      peak.merge(*in_block(&of_block, rank));
    const bool nothing = peak.max == -INFINITY;
    ids[t] = nothing ? 0 : peak.index;
    bad[t] = peak.unusable != 0 || nothing ? 1 : 0;
  }
  cluster_sync();  // shared memory that rank 0 reads stays until it has
}

template <bool kVectors>
Status argmax(Exec& ex, const Argmax::Args& a) {
  const LaunchShape shape{
      .blocks = a.logits.dim(0) * kCluster, .threads = kThreads, .cluster = kCluster};
  return launch_kernel(ex, find_peaks<kVectors>, shape, a.logits.as<const float>(),
                       a.logits.stride(0), static_cast<int>(a.logits.dim(1)), a.ids.as<int32_t>(),
                       a.bad.as<int32_t>());
}

bool is_aligned(const Argmax::Args& a) {
  return takes_vectors(a.logits);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<Argmax> argmax_cuda{
    {"vectors", sm(90), "V<=1073741824", kTraits, argmax<true>, MathUnit::kF32, is_aligned},
    {"elements", sm(90), "V<=1073741824", kTraits, argmax<false>},
};

}  // namespace fathom
