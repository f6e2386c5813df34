// A row of channels that a block has in shared memory: its norm, and the turn of its last channels.
// Sums are in the order of norm/inverse_rms.h, so that the bits are those of the CPU.
#pragma once

#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rotate.cuh"
#include "fathom/tensor/view.h"

namespace fathom::cuda {

/// Shared memory of a block with a row:  row[D] | result[D] | weights[D] | angles[R]
struct RowMemory {
  float* row;
  float* result;
  float* weights;
  float* angles;

  __device__ RowMemory(float* memory, int D)
      : row(memory), result(memory + D), weights(memory + 2 * D), angles(memory + 3 * D) {}

  static constexpr int64_t bytes(int64_t D, int64_t R) {
    return (3 * D + R) * static_cast<int64_t>(sizeof(float));
  }
};

/// `count` elements on their way to shared memory, by all threads of the block: loads of narrow
/// rows are under way from here on, and nothing waits before store().
template <class T>
class RowOnItsWay {
 public:
  __device__ RowOnItsWay(const T* from, int count) : from_(from), count_(count) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (place(i) < count) held_[i] = from[place(i)];
    }
  }

  __device__ void store(float* to) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (place(i) < count_) to[place(i)] = load(&held_[i]);
    }
#pragma unroll 1
    for (int i = place(kHeld); i < count_; i += static_cast<int>(blockDim.x))
      to[i] = load(from_ + i);
  }

 private:
  static constexpr int kHeld = 2;

  __device__ static int place(int i) {
    return static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x);
  }

  const T* from_;
  int count_;
  T held_[kHeld];
};

/// Weights of a norm, in bf16 or f32; none without data.
struct ChannelWeights {
  const void* data = nullptr;
  bool is_bf16 = false;

  /// Copies them to shared memory, by all threads of the block. They are constants of the model, so
  /// that a kernel may do it before the previous one is done.
  __device__ void bring(int D, float* to) const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < D; i += static_cast<int>(blockDim.x))
      to[i] = is_bf16 ? load(static_cast<const Bf16*>(data) + i)
                      : load(static_cast<const float*>(data) + i);
  }
};

inline ChannelWeights channel_weights(const View& v) {
  return {v.present() ? v.data : nullptr, v.format == Format::kBf16};
}

/// 1 / sqrt(mean of squares + eps) of the D values, by a whole warp, in all its lanes.
__device__ __forceinline__ float inverse_rms_of_row(const float* x, int D, float eps) {
  // Partial sums lane and lane + 32, of 64.
  float partial[2] = {};
#pragma unroll 4
  for (int d = lane_id(); d < D; d += 64) {
    partial[0] = __fadd_rn(partial[0], __fmul_rn(x[d], x[d]));
    if (d + 32 < D) partial[1] = __fadd_rn(partial[1], __fmul_rn(x[d + 32], x[d + 32]));
  }
  const float sum = combine_lanes(partial[0] + partial[1], Add());
  return 1.0f / sqrtf(sum / static_cast<float>(D) + eps);
}

/// to[i] = x[i] r weights[i], of which the last R of D channels are turned as adjacent pairs by the
/// angles c_0 .. c_{R/2-1} s_0 .. s_{R/2-1}. By all threads of the block; all is in shared memory,
/// and `to` is none of the others. Null weights are 1.
__device__ __forceinline__ void scale_and_turn(
    const float* x, int D, int R, float r, const float* weights, const float* angles, float* to) {
  const int plain = D - R;
  const auto scaled = [&](int i) { return x[i] * r * (weights == nullptr ? 1.0f : weights[i]); };
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < plain; i += static_cast<int>(blockDim.x))
    to[i] = scaled(i);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < R / 2; i += static_cast<int>(blockDim.x)) {
    const int first = plain + 2 * i;
    float a = scaled(first);
    float b = scaled(first + 1);
    rotate_pair<float>(a, b, angles[i], angles[R / 2 + i]);
    to[first] = a;
    to[first + 1] = b;
  }
}

}  // namespace fathom::cuda
