// Copies into shared memory that run by themselves, and the tensor-core product of one warp.
#pragma once

#include <cstdint>

namespace fathom::cuda {

/// Starts to bring kBytes (4, 8 or 16) from global to shared memory, past the first cache where
/// they are sixteen; zeros instead where `exists` is false. PTX ISA, cp.async.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool exists) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global),
                 "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

/// Ends a group of copies. PTX ISA, cp.async.commit_group.
__device__ __forceinline__ void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending of this thread's groups are on their way. PTX ISA,
/// cp.async.wait_group.
template <int kPending>
__device__ __forceinline__ void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// d += a b for a 16x16 (rows), b 16x8 (columns) of bf16 and d of float32; every lane, g = lane / 4
/// and t = lane % 4, holds
///
///   a0: row g, k 2t 2t+1    a1: row g+8, the same k    a2: row g, k 2t+8 2t+9    a3: row g+8
///   b0: column g, k 2t 2t+1 b1: column g, k 2t+8 2t+9
///   d0 d1: row g, columns 2t 2t+1                      d2 d3: row g+8
///
/// The order of k is free as long as a and b agree. PTX ISA, mma.m16n8k16.
__device__ __forceinline__ void mma_16x8x16(
    float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The same of f16.
__device__ __forceinline__ void mma_16x8x16_f16(
    float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Four matrices of 8 rows of 16 bytes from shared memory, whose rows lanes 8i .. 8i+7 name for
/// matrix i: of matrix i a lane gets the pair 2t 2t+1 of row g, as operands of mma_16x8x16 want it.
/// PTX ISA, ldmatrix.
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}

/// The same of the transposed matrices: a lane gets the pair 2t 2t+1 of column g.
__device__ __forceinline__ void load_transposed(uint32_t (&m)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}

}  // namespace fathom::cuda
