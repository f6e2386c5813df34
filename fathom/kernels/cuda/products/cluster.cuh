// Blocks that run together and see each other's shared memory.
#pragma once

#include <cooperative_groups.h>
#include <cstdint>

namespace fathom::cuda {

/// Number of this block in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
  return cooperative_groups::this_cluster().block_rank();
}

/// Waits for all blocks of the cluster; what they wrote to shared memory can be seen after it.
__device__ __forceinline__ void cluster_sync() {
  cooperative_groups::this_cluster().sync();
}

/// The two halves of a wait for all blocks of the cluster: every thread arrives, and waits later.
/// Of what was written before, only barriers that were made known are seen after it. PTX ISA,
/// barrier.cluster.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/// Where what lies at an address of this block's shared memory lies in block `rank`. PTX ISA, mapa.
__device__ __forceinline__ uint32_t address_in_block(uint32_t address, int rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

/// Stores to the shared memory of a block of the cluster if `really`, and counts the bytes at a
/// barrier that lies there: whoever waits for it sees them. PTX ISA, st.async.
__device__ __forceinline__ void send(uint32_t to, uint32_t barrier, float4 value, bool really) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "@p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%2, %3, %4, %5}, [%1];\n}\n" ::"r"(to),
      "r"(barrier), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w),
      "r"(static_cast<int>(really))
      : "memory");
}

__device__ __forceinline__ void send(uint32_t to, uint32_t barrier, float2 value, bool really) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "@p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2, %3}, "
      "[%1];\n}\n" ::"r"(to),
      "r"(barrier), "f"(value.x), "f"(value.y), "r"(static_cast<int>(really))
      : "memory");
}

__device__ __forceinline__ void send(uint32_t to, uint32_t barrier, uint4 value) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
      "[%0], {%2, %3, %4, %5}, [%1];" ::"r"(to),
      "r"(barrier), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
}

/// Arrives at a barrier of a block of the cluster, whose address `address_in_block` gave: says that
/// this thread has read, not that others may see what it wrote. PTX ISA, mbarrier.arrive.
__device__ __forceinline__ void arrive_in_block(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// The same variable in the shared memory of block `rank`.
template <class T>
__device__ __forceinline__ T* in_block(T* shared, unsigned rank) {
  return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
}

}  // namespace fathom::cuda
