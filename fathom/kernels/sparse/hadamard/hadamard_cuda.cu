#include <algorithm>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sparse/hadamard/hadamard.h"
#include "fathom/kernels/sparse/hadamard/hadamard_lanes.cuh"
#include "fathom/kernels/sparse/hadamard/hadamard_rows.h"
#include "fathom/kernels/sparse/hadamard/hadamard_stage.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// ---- rows in the registers of some lanes ----

/// Elements that the lanes of a warp hold in one vector each.
constexpr int64_t kWarpElements = int64_t{kWarp} * kVector;

/// Lanes of a row: as many as its padded width has vectors, at most a warp.
int64_t lanes_of(int64_t width) {
  return std::min(hadamard_width(width), kWarpElements) / kVector;
}

/// A lane has kVectors vectors of each of kEach rows: vector v is its own of elements
/// 256 v .. 256 v + 255. An item is a lane of a row. What lies beyond the width is zero.
template <class T, int kVectors, int kEach>
__global__ void __launch_bounds__(kFlatThreads)
    transform_vectors(Rows<const T> x, Rows<T> y, int num_vectors, float scale, FlatItems lanes) {
  let_next_start();
  wait_for_previous();
  Packed<T> held[kEach][kVectors] = {};
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const ItemPlace at = lanes.mine<kEach>(r);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int vector = at.item + v * kWarp;
      if (at.exists && vector < num_vectors) held[r][v] = load_packed(x[at.row] + kVector * vector);
    }
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    float values[kVectors][kVector];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      unpack(held[r][v], values[v]);
      transform_lanes(values[v], static_cast<int>(lanes.per_row.divisor));
    }
#pragma unroll
    for (int stride = 1; stride < kVectors; stride *= 2) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if ((v & stride) != 0) continue;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float a = values[v][i];
          const float b = values[v + stride][i];
          values[v][i] = a + b;
          values[v + stride][i] = a - b;
        }
      }
    }
    const ItemPlace at = lanes.mine<kEach>(r);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        values[v][i] *= scale;
      const int vector = at.item + v * kWarp;
      if (at.exists && vector < num_vectors) store8(y[at.row] + kVector * vector, values[v]);
    }
  }
}

template <class T>
Status launch_vectors(Exec& ex, const Hadamard::Args& a) {
  const int64_t width = a.x.dim(1);
  const FlatItems lanes = flat_items(a.x.dim(0), lanes_of(width));
  const auto launch = [&]<int kVectors, int kEach>(const LaunchShape& shape) {
    return launch_kernel(ex, transform_vectors<T, kVectors, kEach>, shape, rows_of<const T>(a.x),
                         rows_of<T>(a.y), static_cast<int>(width / kVector), a.scale, lanes);
  };
  const int64_t padded = hadamard_width(width);
  if (padded > 2 * kWarpElements) return launch.template operator()<4, 1>(one_item_each(lanes));
  if (padded > kWarpElements) return launch.template operator()<2, 1>(one_item_each(lanes));
  return with_items_each(ex, lanes, [&]<int kEach>(const LaunchShape& shape) {
    return launch.template operator()<1, kEach>(shape);
  });
}

Status run_vectors(Exec& ex, const Hadamard::Args& a) {
  return with_float_type(a.x.format, [&]<class T>(T) { return launch_vectors<T>(ex, a); });
}

bool is_aligned(const Hadamard::Args& a) {
  return takes_vectors(a.x) && takes_vectors(a.y);
}

// ---- any width and layout ----

constexpr int kMostThreads = 1024;

/// A block a row, in shared memory.
__global__ void __launch_bounds__(kMostThreads)
    transform_row(AnyRows x, AnyRows y, int width, int padded, float scale) {
  extern __shared__ float row_shared[];
  let_next_start();
  wait_for_previous();
  const int64_t n = blockIdx.x;
  const auto tid = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  for (int i = tid; i < padded; i += threads)
    row_shared[i] = i < width ? x.load(n, i) : 0.0f;
  for (int stride = 1; stride < padded; stride *= 2) {
    __syncthreads();
    transform_stage(row_shared, padded, stride, tid, threads);
  }
  __syncthreads();
  for (int i = tid; i < width; i += threads)
    y.store(n, i, row_shared[i] * scale);
}

Status run_rows(Exec& ex, const Hadamard::Args& a) {
  const int64_t padded = hadamard_width(a.x.dim(1));
  const auto threads = static_cast<int>(std::clamp<int64_t>(padded / 2, kWarp, kMostThreads));
  return launch_kernel(ex, transform_row,
                       {.blocks = a.x.dim(0), .threads = threads, .shared_bytes = 4 * padded},
                       any_rows(a.x), any_rows(a.y), static_cast<int>(a.x.dim(1)),
                       static_cast<int>(padded), a.scale);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<Hadamard> hadamard_cuda{
    {"vectors", sm(90), "D%8==0, D<=1024", kTraits, run_vectors, MathUnit::kF32, is_aligned},
    {"rows", sm(90), "", kTraits, run_rows},
};

}  // namespace fathom
