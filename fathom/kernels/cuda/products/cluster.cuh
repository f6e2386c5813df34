// Blocks that run together and see each other's shared memory.
#pragma once

#include <cooperative_groups.h>

namespace fathom::cuda {

/// Number of this block in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
  return cooperative_groups::this_cluster().block_rank();
}

/// Waits for all blocks of the cluster; what they wrote to shared memory can be seen after it.
__device__ __forceinline__ void cluster_sync() {
  cooperative_groups::this_cluster().sync();
}

/// The same variable in the shared memory of block `rank`.
template <class T>
__device__ __forceinline__ T* in_block(T* shared, unsigned rank) {
  return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
}

}  // namespace fathom::cuda
