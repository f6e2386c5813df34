// The tensor cores of Hopper as attention and products use them: warpgroup instructions on tiles in
// shared memory, and the copies and barriers that feed them. PTX ISA, wgmma, mbarrier and cp.async.
//
// Tiles are panels of 64 columns: a row takes 128 bytes, its 16-byte chunk c lies at c ^ (row % 8),
// and eight rows make the 1,024-byte atom of the hardware's 128-byte swizzle. So one tile can be
// the operand of a product over its columns (keys times queries) and over its rows (values).
//
// An accumulator of 64 x N holds at d[4j + 2h + i] of a lane the element in row 16 w + 8 h + lane/4
// and column 8 j + 2 (lane % 4) + i, where w is the warp within the warpgroup.
#pragma once

#include <cstdint>

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"

namespace fathom::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kPanelColumns = 64;  ///< bf16 columns of a panel
inline constexpr int kPanelRowBytes = 128;

/// Bytes from the start of a panel to chunk `chunk` (eight bf16) of `row`.
__device__ __forceinline__ uint32_t panel_offset(int row, int chunk) {
  return static_cast<uint32_t>(row * kPanelRowBytes + ((chunk ^ (row & 7)) << 4));
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- barriers ----

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/// Makes new barriers visible to the copy engine and, once they have met, to the blocks of the
/// cluster. PTX ISA, fence.mbarrier_init.
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Whether every lane arrives for itself where one arrives for its warp otherwise. __syncwarp()
/// orders the memory of lanes and an arrival releases what it has seen, so one is enough; but
/// racecheck of compute-sanitizer, by its reports, knows only the thread that arrives.
#ifdef FATHOM_RACECHECK
inline constexpr bool kLanesArrive = true;
#else
inline constexpr bool kLanesArrive = false;
#endif
inline constexpr int kWarpArrivals = kLanesArrive ? 32 : 1;  ///< of a warp, for barrier_init

/// Whether this lane arrives for its warp, whose lanes have met.
__device__ __forceinline__ bool arrives_for_warp() {
  return kLanesArrive || lane_id() == 0;
}

/// Arrives for a warp, all lanes of which call it: whoever waits sees what they wrote, and may
/// write over what they read. The barrier counts kWarpArrivals of it.
__device__ __forceinline__ void warp_arrive(uint32_t barrier) {
  __syncwarp();
  if (arrives_for_warp()) barrier_arrive(barrier);
}

/// The same, but not before `loaded` is there, which follows from what the warp loaded from shared
/// memory last. An arrival does not wait for loads that are on their way, if the assembler has put
/// their use behind it; the copy engine was seen to write over what they had yet to read. `zero` is
/// 0, which the compiler does not know.
__device__ __forceinline__ void warp_arrive_after(uint32_t barrier,
                                                  uint32_t loaded,
                                                  uint32_t zero) {
  warp_arrive(barrier + (loaded & zero));
}

/// Waits until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Waits for `threads` threads at the named barrier `id`; 0 is that of __syncthreads().
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts this thread at the named barrier `id` without waiting for the others. In a build for
/// racecheck it waits: that tool orders nothing by `bar.arrive`, and after one does not by
/// `bar.sync` either (docs/architecture.md).
__device__ __forceinline__ void named_arrive(int id, int threads) {
  if constexpr (kLanesArrive) return named_sync(id, threads);
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Makes what this thread wrote to shared memory visible to the tensor cores; a barrier follows.
__device__ __forceinline__ void fence_for_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- copies ----

/// Sixteen bytes to shared memory, zeros unless `exists`; `from` is not read then.
__device__ __forceinline__ void copy_chunk(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until all but the last kPending groups of this thread's copies are done.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void wait_copies_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// Arrives at a barrier once all copies of this thread so far have landed. Whoever waits there
/// calls fence_for_products() before the tensor cores read them.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Sixteen bytes of shared memory, eight and two; sixteen and four to store. PTX ISA, ld.shared,
/// st.shared. Stores are never moved over other accesses, loads but for load_shared_16_now() may
/// be.
__device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}

/// The same behind all stores that precede it in the program.
__device__ __forceinline__ uint4 load_shared_16_now(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

__device__ __forceinline__ uint2 load_shared_8(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}

__device__ __forceinline__ uint16_t load_shared_2(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return v;
}

__device__ __forceinline__ void store_shared_4(uint32_t at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}

__device__ __forceinline__ void store_shared_4(uint32_t at, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ __forceinline__ void store_shared_16(uint32_t at, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

/// Brings the 128 bytes around an address into the last cache.
__device__ __forceinline__ void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// The same if `exists`, by a predicate and not by a branch.
__device__ __forceinline__ void prefetch_line_if(const void* p, bool exists) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p prefetch.global.L2 [%0];\n}\n" ::"l"(p),
               "r"(static_cast<int>(exists)));
}

// ---- registers ----

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- products ----

/// Descriptors of rows of a panel whose columns are summed over (K-major).
struct RowsOperand {
  uint32_t low;

  __device__ __forceinline__ explicit RowsOperand(uint32_t address)
      : low((address & 0x3FFFF) >> 4 | 1u << 16) {}

  /// Of what lies `bytes` behind the address.
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
    constexpr uint32_t kAtomStride = 1024 >> 4;
    return uint64_t{kAtomStride | 1u << 30} << 32 | (low + (bytes >> 4));
  }
};

__device__ __forceinline__ uint64_t rows_operand(uint32_t address) {
  return RowsOperand(address).at(0);
}

/// Descriptor of panels `panel_stride` bytes apart whose rows are summed over (MN-major).
__device__ __forceinline__ uint64_t columns_operand(uint32_t address, uint32_t panel_stride) {
  constexpr uint64_t kAtomStride = 1024 >> 4;
  return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{panel_stride >> 4} << 16 |
         kAtomStride << 32 | uint64_t{1} << 62;
}

/// Before the first product of a chain: registers written so far are seen by the products.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until all but the last kPending chains are done.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Two numbers as one word of bf16, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

/// What pack_bf16 leaves of the two numbers, rounded the same way.
__device__ __forceinline__ uint32_t pack_bf16_rest(float low, float high, uint32_t word) {
  return pack_bf16(low - __uint_as_float(word << 16), high - __uint_as_float(word & 0xFFFF0000u));
}

// The operands of the accumulators of 64, 128 and 256 columns, as the assembler counts them.
#define FATHOM_SUMS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
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
#define FATHOM_SUMS_16_OF(i) FATHOM_SUMS_8_OF(i), FATHOM_SUMS_8_OF(i + 8)
#define FATHOM_SUMS_32_OF(i) \
  FATHOM_SUMS_8_OF(i), FATHOM_SUMS_8_OF(i + 8), FATHOM_SUMS_8_OF(i + 16), FATHOM_SUMS_8_OF(i + 24)
#define FATHOM_SUMS_64_OF(i) FATHOM_SUMS_32_OF(i), FATHOM_SUMS_32_OF(i + 32)
#define FATHOM_SUMS_128_OF(i) FATHOM_SUMS_64_OF(i), FATHOM_SUMS_64_OF(i + 64)

/// d[64 x 64] (+)= a b^T over 16 columns of both.
__device__ __forceinline__ void multiply_rows(float (&d)[32],
                                              uint64_t a,
                                              uint64_t b,
                                              bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FATHOM_SUMS_32
      "}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : FATHOM_SUMS_32_OF(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 128] (+)= a b^T over 16 columns of both.
__device__ __forceinline__ void multiply_rows(float (&d)[64],
                                              uint64_t a,
                                              uint64_t b,
                                              bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FATHOM_SUMS_64
      "}, "
      "%64, %65, p, 1, 1, 0, 0;\n}\n"
      : FATHOM_SUMS_64_OF(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 256] += a b over 16 columns of a and as many rows of b.
__device__ __forceinline__ void multiply_columns(float (&d)[128],
                                                 uint64_t a,
                                                 uint64_t b,
                                                 bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FATHOM_SUMS_128
      "}, "
      "%128, %129, p, 1, 1, 0, 1;\n}\n"
      : FATHOM_SUMS_128_OF(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 128] += a b over 16 columns of a and as many rows of b.
__device__ __forceinline__ void multiply_columns(float (&d)[64],
                                                 uint64_t a,
                                                 uint64_t b,
                                                 bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FATHOM_SUMS_64
      "}, "
      "%64, %65, p, 1, 1, 0, 1;\n}\n"
      : FATHOM_SUMS_64_OF(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 128] += a b, a in registers: accumulators of a product, packed.
__device__ __forceinline__ void multiply_columns(float (&d)[64],
                                                 const uint32_t (&a)[4],
                                                 uint64_t b,
                                                 bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FATHOM_SUMS_64
      "}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : FATHOM_SUMS_64_OF(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d[64 x 256] += a b, a in registers: accumulators of a product, packed.
__device__ __forceinline__ void multiply_columns(float (&d)[128],
                                                 const uint32_t (&a)[4],
                                                 uint64_t b,
                                                 bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FATHOM_SUMS_128
      "}, "
      "{%128, %129, %130, %131}, %132, p, 1, 1, 1;\n}\n"
      : FATHOM_SUMS_128_OF(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

}  // namespace fathom::cuda
