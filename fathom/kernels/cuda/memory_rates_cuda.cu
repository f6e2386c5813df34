#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/memory_rates.h"

namespace fathom {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;  // loads that a thread has under way
constexpr int64_t kPerBlock = int64_t{kThreads} * kUnroll;

__global__ void __launch_bounds__(kThreads)
    copy_words(uint4* to, const uint4* from, int64_t count) {
  cuda::let_next_start();
  cuda::wait_for_previous();
  const int64_t first = blockIdx.x * kPerBlock + threadIdx.x;
  uint4 held[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * kThreads < count) held[i] = __ldcs(from + first + i * kThreads);
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * kThreads < count) __stcs(to + first + i * kThreads, held[i]);
  }
}

__global__ void __launch_bounds__(kThreads)
    read_words(const uint4* from, int64_t count, int* sink) {
  cuda::let_next_start();
  cuda::wait_for_previous();
  const int64_t first = blockIdx.x * kPerBlock + threadIdx.x;
  uint4 held[kUnroll] = {};
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * kThreads < count) held[i] = from[first + i * kThreads];
  }
  unsigned all = 1;
#pragma unroll
  for (int i = 0; i < kUnroll; ++i)
    all ^= held[i].x ^ held[i].y ^ held[i].z ^ held[i].w;
  if (all == 0) *sink = 1;  // keeps the loads; two words that differ by one bit are rare
}

Status check_words(const void* to, const void* from, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(to) % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0 &&
      bytes % 16 == 0 && bytes >= 0) {
    return {};
  }
  return invalid_argument(str_cat("memory of ", bytes, " bytes is not in multiples of 16"));
}

LaunchShape shape_for(int64_t words) {
  return {.blocks = (words + kPerBlock - 1) / kPerBlock, .threads = kThreads};
}

}  // namespace

Status copy_by_kernel(Stream& stream, void* to, const void* from, int64_t bytes) {
  FATHOM_TRY(check_words(to, from, bytes));
  Exec ex;
  ex.stream = &stream;
  return launch_kernel(ex, copy_words, shape_for(bytes / 16), static_cast<uint4*>(to),
                       static_cast<const uint4*>(from), bytes / 16);
}

Status read_by_kernel(Stream& stream, const void* from, int64_t bytes, void* sink) {
  FATHOM_TRY(check_words(from, from, bytes));
  Exec ex;
  ex.stream = &stream;
  return launch_kernel(ex, read_words, shape_for(bytes / 16), static_cast<const uint4*>(from),
                       bytes / 16, static_cast<int*>(sink));
}

}  // namespace fathom
