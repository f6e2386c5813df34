// Sparse attention of some heads of a token by one block, element by element: any formats, widths
// and layouts, float32 throughout. Rows are taken in blocks of 64 of the list without the entries
// that name none, as the contract says; each is decoded once for the scores of all heads and, where
// a block does not fit in memory, once more for its values.
#pragma once

#include <cmath>

#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_call.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::sparse_mla {

using namespace cuda;  // NOLINT: device primitives

inline constexpr int kHeadsThreads = 256;
inline constexpr int kHeadsWarps = kHeadsThreads / 32;
inline constexpr int kBlock = static_cast<int>(kRowBlock);
static_assert(kBlock == 64, "a warp holds a block of scores in two numbers a lane");

/// How much a block takes at once. Says nothing about results.
struct BlockSize {
  int heads = 1;
  int rows = 1;  ///< decoded in memory
};

/// Shared memory of a block, in floats unless said otherwise:
///
///   q [heads, D] | sums of values [heads, L] | rows [rows, D] | weights [heads, 64] |
///   max, sum, shrink [heads] each | slots [64] of int32
struct BlockMemory {
  float* q;
  float* o;
  float* rows;
  float* weights;
  float* max;
  float* sum;
  float* shrink;
  int32_t* slots;

  static int64_t floats(const Call& c, const BlockSize& size) {
    const int64_t D = c.q.dim(2);
    return size.heads * (D + c.o.dim(2) + kBlock + 3) + size.rows * D + kBlock;
  }

  __device__ BlockMemory(float* memory, const DeviceCall& c, const BlockSize& size)
      : q(memory),
        o(q + size.heads * c.D),
        rows(o + size.heads * c.L),
        weights(rows + size.rows * c.D),
        max(weights + size.heads * kBlock),
        sum(max + size.heads),
        shrink(sum + size.heads),
        slots(reinterpret_cast<int32_t*>(shrink + size.heads)) {}
};

// ---- lists ----

/// Where a warp is in the lists of a token.
struct Cursor {
  int source = 0;
  int entry = 0;
};

/// A block of rows: the first `of_first` are of source 0.
struct RowBlock {
  int count;
  int of_first;
};

/// The next rows of the lists of token t, at most a block, without the entries that name none. By
/// one warp.
__device__ inline RowBlock next_rows(const DeviceCall& c, int64_t t, Cursor& at, int32_t* slots) {
  RowBlock block{};
  while (at.source < c.num_sources && block.count < kBlock) {
    const Source& source = c.sources[at.source];
    const int length = c.list_length(at.source, t);
    if (at.entry >= length) {
      at = {at.source + 1, 0};
      continue;
    }
    const int entry = at.entry + lane_id();
    const int32_t slot = entry < length ? source.slots[t * source.slots_stride + entry] : -1;
    const bool names = source.names(slot);
    const uint32_t found = __ballot_sync(0xFFFFFFFFu, names);
    const int place = block.count + __popc(found & ((1u << lane_id()) - 1));
    const bool fits = names && place < kBlock;
    if (fits) slots[place] = slot;
    const uint32_t taken = __ballot_sync(0xFFFFFFFFu, fits);
    block.count += __popc(taken);
    at.entry += taken == found ? 32 : 32 - __clz(static_cast<int>(taken));
    if (at.source == 0) block.of_first = block.count;
  }
  __syncwarp();
  return block;
}

// ---- rows ----

__device__ inline float scale_at(const Source& s, PageRow place, int group) {
  const unsigned char* scales = s.scales.at(place);
  switch (s.scale_format) {
    case Format::kUe8m0:
      return to_float(reinterpret_cast<const Ue8m0*>(scales)[group]);
    case Format::kE4m3:
      return load(reinterpret_cast<const E4m3*>(scales) + group);
    default:
      return reinterpret_cast<const float*>(scales)[group];
  }
}

/// Channel d of a row. Codes are rounded to Q's format after they are scaled.
template <class Q>
__device__ float channel(const Source& s, PageRow place, int d) {
  if (d >= s.W) return load(reinterpret_cast<const Bf16*>(s.rope.at(place)) + (d - s.W));
  const unsigned char* values = s.values.at(place);
  if (s.group == 0) return load_any(values, s.value_format, d);
  float code;
  if (s.value_format == Format::kU8) {
    const uint8_t pair = values[d / 2];
    code = to_float(E2m1{static_cast<uint8_t>(d % 2 == 0 ? pair & 15 : pair >> 4)});
  } else {
    code = load(reinterpret_cast<const E4m3*>(values) + d);
  }
  return rounded<Q>(code * scale_at(s, place, d / s.group));
}

/// Rows [begin, end) of a block to memory, a warp each in turn.
template <class Q>
__device__ void decode_rows(
    const DeviceCall& c, const BlockMemory& m, const RowBlock& block, int begin, int end) {
  for (int j = begin + warp_id(); j < end; j += kHeadsWarps) {
    const Source& source = c.sources[j < block.of_first ? 0 : 1];
    const PageRow place = source.place(m.slots[j]);
    for (int d = lane_id(); d < c.D; d += 32)
      m.rows[(j - begin) * c.D + d] = channel<Q>(source, place, d);
  }
}

// ---- attention ----

/// Scores of rows [begin, end), a warp for a head and a row in turn.
__device__ inline void score_rows(
    const DeviceCall& c, const BlockMemory& m, int heads, int begin, int end) {
  const int count = end - begin;
  for (int pair = warp_id(); pair < heads * count; pair += kHeadsWarps) {
    const int h = pair / count;
    const int j = pair - h * count;
    float dot = 0.0f;
    for (int d = lane_id(); d < c.D; d += 32)
      dot += m.q[h * c.D + d] * m.rows[j * c.D + d];
    dot = combine_lanes(dot, Add{});
    if (lane_id() == 0) m.weights[h * kBlock + begin + j] = dot * c.scale;
  }
}

/// Turns the scores of a block into weights, a warp a head in turn.
__device__ inline void weigh_rows(const BlockMemory& m, int heads, int count) {
  for (int h = warp_id(); h < heads; h += kHeadsWarps) {
    float* weights = m.weights + h * kBlock;
    float scores[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int j = lane_id() + 32 * i;
      scores[i] = j < count ? weights[j] : -INFINITY;
    }
    const float before = m.max[h];
    const float most = fmaxf(before, combine_lanes(fmaxf(scores[0], scores[1]), Max{}));
    // -inf: no row has any weight yet, and e^(-inf - 0) is 0 as it should be.
    const float base = most == -INFINITY ? 0.0f : most;
    const float shrink = expf(before - base);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float weight = expf(scores[i] - base);
      weights[lane_id() + 32 * i] = weight;
      sum += weight;
    }
    sum = m.sum[h] * shrink + combine_lanes(sum, Add{});
    __syncwarp();
    if (lane_id() == 0) {
      m.max[h] = most;
      m.sum[h] = sum;
      m.shrink[h] = shrink;
    }
  }
}

/// Adds the weighted values of rows [begin, end); the sums of earlier blocks shrink with the first.
__device__ inline void add_rows(
    const DeviceCall& c, const BlockMemory& m, int heads, int begin, int end) {
  for (int i = static_cast<int>(threadIdx.x); i < heads * c.L; i += kHeadsThreads) {
    const int h = i / c.L;
    const int d = i - h * c.L;
    float total = begin == 0 ? m.o[i] * m.shrink[h] : m.o[i];
    for (int j = begin; j < end; ++j)
      total += m.weights[h * kBlock + j] * m.rows[(j - begin) * c.D + d];
    m.o[i] = total;
  }
}

/// What the sums of a head's values are multiplied by in the end.
__device__ inline float normaliser(const DeviceCall& c, int n, float max, float sum) {
  if (sum == 0.0f) return 0.0f;
  if (c.sink == nullptr) return 1.0f / sum;
  return 1.0f / (sum + expf(c.sink[n] - max));
}

/// Brings the angles of a token into the last cache.
__device__ inline void prefetch_angles(const TurnTable& turn, int position) {
  constexpr int kLine = 32;  // floats
  const int at = static_cast<int>(threadIdx.x) * kLine;
  if (at < turn.R && position >= 0 && position < turn.num_rows)
    prefetch_line(turn.rows + position * turn.stride + at);
}

/// Channel d of head h: the sum times `factor`, turned back with its neighbour at the end of a
/// head.
__device__ inline float result(
    const DeviceCall& c, const float* sums, float factor, int position, int d) {
  const int turned = d - (c.L - c.turn.R);
  if (turned < 0) return sums[d] * factor;
  const int first = d - (turned & 1);
  float a = sums[first] * factor;
  float b = sums[first + 1] * factor;
  turn_back(c.turn.angle(position, turned / 2), a, b);
  return (turned & 1) == 0 ? a : b;
}

/// Blocks of a token lie side by side.
template <class Q>
__global__ void __launch_bounds__(kHeadsThreads)
    attend_heads(const __grid_constant__ DeviceCall c, const BlockSize size) {
  extern __shared__ float heads_shared[];
  __shared__ RowBlock shared_block;
  cuda::let_next_start();
  cuda::wait_for_previous();
  const BlockMemory m(heads_shared, c, size);
  const uint32_t blocks = static_cast<uint32_t>((c.N + size.heads - 1) / size.heads);
  const int64_t t = blockIdx.x / blocks;
  const int first = static_cast<int>(blockIdx.x - static_cast<uint32_t>(t) * blocks) * size.heads;
  const int heads = c.N - first < size.heads ? c.N - first : size.heads;
  const auto tid = static_cast<int>(threadIdx.x);
  const int position = c.turn.position(t);
  for (int i = tid; i < heads * c.D; i += kHeadsThreads) {
    const int h = i / c.D;
    m.q[i] = load(static_cast<const Q*>(c.q.data) + c.q.offset(t, first + h) + (i - h * c.D));
  }
  for (int i = tid; i < heads * c.L; i += kHeadsThreads)
    m.o[i] = 0.0f;
  for (int h = tid; h < heads; h += kHeadsThreads) {
    m.max[h] = -INFINITY;
    m.sum[h] = 0.0f;
  }
  prefetch_angles(c.turn, position);
  Cursor cursor;
  while (true) {
    if (warp_id() == 0) {
      const RowBlock next = next_rows(c, t, cursor, m.slots);
      if (lane_id() == 0) shared_block = next;
    }
    __syncthreads();
    const RowBlock block = shared_block;
    if (block.count == 0) break;
    for (int begin = 0; begin < block.count; begin += size.rows) {
      const int end = min(begin + size.rows, block.count);
      decode_rows<Q>(c, m, block, begin, end);
      __syncthreads();
      score_rows(c, m, heads, begin, end);
      __syncthreads();
    }
    weigh_rows(m, heads, block.count);
    __syncthreads();
    for (int begin = 0; begin < block.count; begin += size.rows) {
      const int end = min(begin + size.rows, block.count);
      if (block.count > size.rows) {
        decode_rows<Q>(c, m, block, begin, end);
        __syncthreads();
      }
      add_rows(c, m, heads, begin, end);
      __syncthreads();
    }
  }
  for (int i = tid; i < heads * c.L; i += kHeadsThreads) {
    const int h = i / c.L;
    const float factor = normaliser(c, first + h, m.max[h], m.sum[h]);
    const int d = i - h * c.L;
    store_any(c.o.data, c.o.format, c.o.offset(t, first + h) + d,
              result(c, m.o + h * c.L, factor, position, d));
  }
  for (int h = tid; h < heads; h += kHeadsThreads) {
    const float sum = m.sum[h];
    const float lse = sum == 0.0f ? -INFINITY : m.max[h] + logf(sum);
    if (c.max.data != nullptr)
      static_cast<float*>(c.max.data)[c.max.offset(t, first + h)] = m.max[h] * c.lse_factor;
    if (c.lse.data != nullptr)
      static_cast<float*>(c.lse.data)[c.lse.offset(t, first + h)] = lse * c.lse_factor;
  }
}

}  // namespace fathom::sparse_mla
