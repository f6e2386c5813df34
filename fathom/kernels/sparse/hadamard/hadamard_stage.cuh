// The butterflies of a row in shared memory.
#pragma once

namespace fathom::cuda {

/// One stage of rows of D elements, a power of two: by `threads` threads, of which this is number
/// `thread`. Results are multiplied with `factor`. What the threads wrote before must be seen, and
/// is seen after the next barrier; up to a stride of 32 a warp reads what it wrote itself, if all
/// warps are whole and number their threads in order.
__device__ __forceinline__ void transform_stage(
    float* x, int D, int stride, int thread, int threads, float factor = 1.0f) {
#pragma unroll 1
  for (int pair = thread; pair < D / 2; pair += threads) {
    const int first = 2 * pair - (pair & (stride - 1));
    const float a = x[first];
    const float b = x[first + stride];
    x[first] = (a + b) * factor;
    x[first + stride] = (a - b) * factor;
  }
}

}  // namespace fathom::cuda
