// request_offsets.h on a GPU.
#pragma once

#include <cstdint>

#include "fathom/kernels/cuda/device_code.cuh"

namespace fathom::cuda {

/// request_at() of token t, by a warp whose lanes all ask for the same one: of each stretch that
/// may hold the end, 32 offsets are looked at together.
__device__ __forceinline__ int request_by_warp(const int32_t* q_offsets,
                                               int num_requests,
                                               int64_t t) {
  int low = 0;                  // offsets below it are not above t
  int high = num_requests + 1;  // offsets from it on are
  while (low < high) {
    const int step = (high - low + 31) / 32;
    const int at = low + lane_id() * step;
    const bool reached = at < high && q_offsets[at] <= t;
    const int count = __popc(__ballot_sync(0xFFFFFFFFu, reached));
    if (count == 0) break;
    const int last = low + (count - 1) * step;
    high = min(high, last + step);
    low = last + 1;
  }
  return low - 1;
}

}  // namespace fathom::cuda
