// The products of a warpgroup that tiles of weights use: 64 rows of weights (from shared memory, or
// decoded in registers) times 64, 128 or 256 rows of activations in shared memory, all K-major in
// panels of 128 bytes. PTX ISA, wgmma.
//
// Fragments of 64 x 16 in registers: lane 4 g + t of warp q holds
//
//   a[0]: row 16 q + g, k 2t 2t+1     a[1]: row 16 q + g + 8, the same k
//   a[2]: row 16 q + g, k 2t+8 2t+9   a[3]: row 16 q + g + 8
#pragma once

#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::cuda {

// The operands of the accumulators of 64, 128 and 256 columns, as the assembler counts them.
#define FATHOM_SUMS_32                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FATHOM_SUMS_64                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FATHOM_SUMS_128                                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FATHOM_SUMS_8_OF(i)                                                                   \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define FATHOM_SUMS_32_OF(i) \
  FATHOM_SUMS_8_OF(i), FATHOM_SUMS_8_OF(i + 8), FATHOM_SUMS_8_OF(i + 16), FATHOM_SUMS_8_OF(i + 24)
#define FATHOM_SUMS_64_OF(i) FATHOM_SUMS_32_OF(i), FATHOM_SUMS_32_OF(i + 32)
#define FATHOM_SUMS_128_OF(i) FATHOM_SUMS_64_OF(i), FATHOM_SUMS_64_OF(i + 64)

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

#undef FATHOM_SUMS_32
#undef FATHOM_SUMS_64
#undef FATHOM_SUMS_128
#undef FATHOM_SUMS_8_OF
#undef FATHOM_SUMS_32_OF
#undef FATHOM_SUMS_64_OF
#undef FATHOM_SUMS_128_OF

/// A matrix of 8 x 8 words of sixteen bits over the lanes of a warp, turned over: lane 4 g + t has
/// columns 2t 2t+1 of row g. PTX ISA, movmatrix.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

}  // namespace fathom::cuda
