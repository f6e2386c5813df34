// The products of a warpgroup that tiles of weights use: 64 rows of weights (from shared memory, or
// decoded in registers) times 32 to 256 rows of activations in shared memory, all K-major in
// panels of 128 bytes. PTX ISA, wgmma.
//
// Fragments of 64 x 16 in registers: lane 4 g + t of warp q holds
//
//   a[0]: row 16 q + g, k 2t 2t+1     a[1]: row 16 q + g + 8, the same k
//   a[2]: row 16 q + g, k 2t+8 2t+9   a[3]: row 16 q + g + 8
//
// of 64 x 32 in E4M3 the same with four bytes a register: k 4t .. 4t+3, and 16 more.
#pragma once

#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::cuda {

/// d[64 x 256] (+)= a b^T over 16 columns of both.
__device__ __forceinline__ void multiply_rows(float (&d)[128],
                                              uint64_t a,
                                              uint64_t b,
                                              bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FATHOM_SUMS_128
      "}, "
      "%128, %129, p, 1, 1, 0, 0;\n}\n"
      : FATHOM_SUMS_128_OF(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 32] (+)= a b^T over 16 columns of both, a in registers.
__device__ __forceinline__ void multiply_rows(float (&d)[16],
                                              const uint32_t (&a)[4],
                                              uint64_t b,
                                              bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" FATHOM_SUMS_16
      "}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}\n"
      : FATHOM_SUMS_16_OF(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 64] (+)= a b^T over 16 columns of both, a in registers.
__device__ __forceinline__ void multiply_rows(float (&d)[32],
                                              const uint32_t (&a)[4],
                                              uint64_t b,
                                              bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FATHOM_SUMS_32
      "}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
      : FATHOM_SUMS_32_OF(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 128] (+)= a b^T over 16 columns of both, a in registers.
__device__ __forceinline__ void multiply_rows(float (&d)[64],
                                              const uint32_t (&a)[4],
                                              uint64_t b,
                                              bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FATHOM_SUMS_64
      "}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
      : FATHOM_SUMS_64_OF(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 256] (+)= a b^T over 16 columns of both, a in registers.
__device__ __forceinline__ void multiply_rows(float (&d)[128],
                                              const uint32_t (&a)[4],
                                              uint64_t b,
                                              bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FATHOM_SUMS_128
      "}, "
      "{%128, %129, %130, %131}, %132, p, 1, 1, 0;\n}\n"
      : FATHOM_SUMS_128_OF(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 64] (+)= a b^T over 32 columns of E4M3 of both.
__device__ __forceinline__ void multiply_codes(float (&d)[32],
                                               uint64_t a,
                                               uint64_t b,
                                               bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" FATHOM_SUMS_32
      "}, "
      "%32, %33, p, 1, 1;\n}\n"
      : FATHOM_SUMS_32_OF(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 128] (+)= a b^T over 32 columns of E4M3 of both.
__device__ __forceinline__ void multiply_codes(float (&d)[64],
                                               uint64_t a,
                                               uint64_t b,
                                               bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" FATHOM_SUMS_64
      "}, "
      "%64, %65, p, 1, 1;\n}\n"
      : FATHOM_SUMS_64_OF(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 64] (+)= a b^T over 32 columns of E4M3 of both, a in registers.
__device__ __forceinline__ void multiply_codes(float (&d)[32],
                                               const uint32_t (&a)[4],
                                               uint64_t b,
                                               bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" FATHOM_SUMS_32
      "}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1;\n}\n"
      : FATHOM_SUMS_32_OF(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 128] (+)= a b^T over 32 columns of E4M3 of both, a in registers.
__device__ __forceinline__ void multiply_codes(float (&d)[64],
                                               const uint32_t (&a)[4],
                                               uint64_t b,
                                               bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" FATHOM_SUMS_64
      "}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1;\n}\n"
      : FATHOM_SUMS_64_OF(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// Sums of products that have been waited for: what uses them stays behind this.
__device__ __forceinline__ void settle_sums(float (&d)[32]) {
  asm volatile("" : FATHOM_SUMS_32_OF(0)::"memory");
}

/// A matrix of 8 x 8 words of sixteen bits over the lanes of a warp, turned over: lane 4 g + t has
/// columns 2t 2t+1 of row g. PTX ISA, movmatrix.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

}  // namespace fathom::cuda
