// What every kernel needs: its place, and the waits of programmatic dependent launch.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace fathom::cuda {

/// Waits until all kernels given to the stream earlier are done and what they wrote can be seen.
/// PTX ISA, griddepcontrol. Every thread that reads or writes memory of others calls it first.
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Lets the blocks of the next kernel be set up from now on. It still waits for this one before it
/// reads what this one writes. PTX ISA, griddepcontrol.
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// A value that the compiler does not compute again instead of keeping it.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// An object in shared memory whose address is kept in a register: the compiler makes it again
/// from the place of the block's window, at every use.
template <class T>
__device__ __forceinline__ T& kept_shared(T& object) {
  const uint32_t address = kept(static_cast<uint32_t>(__cvta_generic_to_shared(&object)));
  return *static_cast<T*>(__cvta_shared_to_generic(address));
}

__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x) & 31;
}

__device__ __forceinline__ int warp_id() {
  return static_cast<int>(threadIdx.x) >> 5;
}

}  // namespace fathom::cuda
