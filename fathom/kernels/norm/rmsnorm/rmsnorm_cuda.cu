#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// A block holds a row in registers: kVectors groups of eight elements in each thread. How many
/// depends on D alone, so that the order of the sum does not depend on the number of rows.
template <class T, int kVectors>
struct HeldRow {
  Packed<T> vectors[kVectors];

  // vectors[v]: elements 8 i .. 8 i + 7 of the row, i = threadIdx.x + v blockDim.x
  static __device__ int place(int v) {
    return static_cast<int>(threadIdx.x) + v * static_cast<int>(blockDim.x);
  }

  __device__ void load(const T* row, int num_vectors) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (place(v) < num_vectors) vectors[v] = load_packed(row + kVector * place(v));
    }
  }
};

/// Threads of the largest block that holds kVectors in each.
template <int kVectors>
inline constexpr int kMostThreads = kVectors <= 2 ? 512 : 1024;

/// Weights are constants of the model, so that narrow rows take them before they wait for the
/// previous kernel. Wide rows have no registers for that.
template <class W, int kVectors>
struct Weights {
  static constexpr bool kHeld = kVectors <= 2;
  const W* w;
  HeldRow<W, kHeld ? kVectors : 1> held;

  __device__ Weights(const W* data, int num_vectors) : w(data) {
    if constexpr (kHeld) held.load(w, num_vectors);
  }

  __device__ void load(int v, float (&out)[kVector]) const {
    if constexpr (kHeld) {
      unpack(held.vectors[v], out);
    } else {
      load8(w + kVector * held.place(v), out);
    }
  }
};

__device__ float inverse_rms(float sum_of_squares, int64_t D, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(D) + eps);
}

// One row a block.
template <class A, class W, int kVectors>
__global__ void __launch_bounds__(kMostThreads<kVectors>)
    rmsnorm_row(Rows<const A> x, const W* w, Rows<A> y, int num_vectors, float eps) {
  __shared__ float scratch[32];
  const int64_t t = blockIdx.x;
  const Weights<W, kVectors> weight(w, num_vectors);
  let_next_start();
  wait_for_previous();
  HeldRow<A, kVectors> row;
  row.load(x[t], num_vectors);

  float sum = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (row.place(v) >= num_vectors) continue;
    float values[kVector];
    unpack(row.vectors[v], values);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      sum += values[i] * values[i];
  }
  const float r = inverse_rms(combine_block(sum, scratch, Add()), int64_t{8} * num_vectors, eps);

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (row.place(v) >= num_vectors) continue;
    float values[kVector];
    float scale[kVector];
    unpack(row.vectors[v], values);
    weight.load(v, scale);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      values[i] = values[i] * r * scale[i];
    store8(y[t] + kVector * row.place(v), values);
  }
}

// As rmsnorm_row; the sum is formed twice from x and h, which takes fewer registers than keeping
// it.
template <class A, class W, int kVectors>
__global__ void __launch_bounds__(kMostThreads<kVectors>)
    add_rmsnorm_row(Rows<const A> x, Rows<A> h, const W* w, Rows<A> y, int num_vectors, float eps) {
  __shared__ float scratch[32];
  const int64_t t = blockIdx.x;
  const Weights<W, kVectors> weight(w, num_vectors);
  let_next_start();
  wait_for_previous();
  HeldRow<A, kVectors> branch;
  HeldRow<A, kVectors> stream;
  branch.load(x[t], num_vectors);
  stream.load(h[t], num_vectors);

  float sum = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (branch.place(v) >= num_vectors) continue;
    float values[kVector];
    float added[kVector];
    unpack(stream.vectors[v], values);
    unpack(branch.vectors[v], added);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] += added[i];
      sum += values[i] * values[i];
    }
    store8(h[t] + kVector * branch.place(v), values);
  }
  const float r = inverse_rms(combine_block(sum, scratch, Add()), int64_t{8} * num_vectors, eps);

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (branch.place(v) >= num_vectors) continue;
    float values[kVector];
    float added[kVector];
    float scale[kVector];
    unpack(stream.vectors[v], values);
    unpack(branch.vectors[v], added);
    weight.load(v, scale);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      values[i] = (values[i] + added[i]) * r * scale[i];
    store8(y[t] + kVector * branch.place(v), values);
  }
}

/// Any formats, strides and widths: the row is read twice. `h` has no data where there is no
/// stream.
__global__ void __launch_bounds__(256)
    norm_row_any(AnyRows x, AnyRows h, AnyRows w, AnyRows y, int64_t D, float eps) {
  __shared__ float scratch[32];
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  const auto value = [&](int64_t d) {
    return x.load(t, d) + (h.data == nullptr ? 0.0f : h.load(t, d));
  };
  float sum = 0;
  for (int64_t d = threadIdx.x; d < D; d += blockDim.x)
    sum += value(d) * value(d);
  const float r = inverse_rms(combine_block(sum, scratch, Add()), D, eps);
  for (int64_t d = threadIdx.x; d < D; d += blockDim.x) {
    const float s = value(d);
    if (h.data != nullptr) h.store(t, d, s);
    y.store(t, d, s * r * w.load(0, d));
  }
}

/// Calls f(A{}, W{}) for the formats that rows in registers are compiled for.
template <class F>
Status with_norm_types(Format rows, Format weight, F f) {
  return with_float_type(
      rows, [&]<class A>(A) { return weight == rows ? f(A{}, A{}) : f(A{}, float{}); });
}

/// Calls f.template operator()<kVectors>(threads), by the width of a row alone.
template <class F>
Status with_row_shape(int num_vectors, F f) {
  const auto threads = [&](int vectors) {
    return ceil_div(ceil_div(num_vectors, vectors), 32) * 32;
  };
  if (num_vectors <= 512) return f.template operator()<1>(threads(1));
  if (num_vectors <= 1024) return f.template operator()<2>(threads(2));
  return f.template operator()<4>(threads(4));
}

bool fits_registers(const View& x, const View& w, const View& y) {
  return x.format == y.format && (w.format == x.format || w.format == Format::kF32) &&
         takes_vectors(x) && takes_vectors(w) && takes_vectors(y);
}

Status rmsnorm_in_registers(Exec& ex, const RmsNorm::Args& a) {
  const auto num_vectors = static_cast<int>(a.x.dim(1) / kVector);
  return with_norm_types(a.x.format, a.w.format, [&]<class A, class W>(A, W) {
    return with_row_shape(num_vectors, [&]<int kVectors>(int threads) {
      return launch_kernel(ex, rmsnorm_row<A, W, kVectors>,
                           {.blocks = a.x.dim(0), .threads = threads}, rows_of<const A>(a.x),
                           a.w.as<const W>(), rows_of<A>(a.y), num_vectors, a.eps);
    });
  });
}

Status add_rmsnorm_in_registers(Exec& ex, const AddRmsNorm::Args& a) {
  const auto num_vectors = static_cast<int>(a.x.dim(1) / kVector);
  return with_norm_types(a.x.format, a.w.format, [&]<class A, class W>(A, W) {
    return with_row_shape(num_vectors, [&]<int kVectors>(int threads) {
      return launch_kernel(ex, add_rmsnorm_row<A, W, kVectors>,
                           {.blocks = a.x.dim(0), .threads = threads}, rows_of<const A>(a.x),
                           rows_of<A>(a.h), a.w.as<const W>(), rows_of<A>(a.y), num_vectors, a.eps);
    });
  });
}

Status rmsnorm_any_layout(Exec& ex, const RmsNorm::Args& a) {
  return launch_kernel(ex, norm_row_any, {.blocks = a.x.dim(0), .threads = 256}, any_rows(a.x),
                       AnyRows{}, any_rows(a.w), any_rows(a.y), a.x.dim(1), a.eps);
}

Status add_rmsnorm_any_layout(Exec& ex, const AddRmsNorm::Args& a) {
  return launch_kernel(ex, norm_row_any, {.blocks = a.x.dim(0), .threads = 256}, any_rows(a.x),
                       any_rows(a.h), any_rows(a.w), any_rows(a.y), a.x.dim(1), a.eps);
}

bool rmsnorm_fits_registers(const RmsNorm::Args& a) {
  return fits_registers(a.x, a.w, a.y);
}

bool add_rmsnorm_fits_registers(const AddRmsNorm::Args& a) {
  return fits_registers(a.x, a.w, a.y) && takes_vectors(a.h);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<RmsNorm> rmsnorm_cuda{
    {"in_registers", sm(90), "D>=8, D%8==0, D<=32768", kTraits, rmsnorm_in_registers,
     MathUnit::kF32, rmsnorm_fits_registers},
    {"any_layout", sm(90), "", kTraits, rmsnorm_any_layout},
};

constinit const VariantTable<AddRmsNorm> add_rmsnorm_cuda{
    {"in_registers", sm(90), "D>=8, D%8==0, D<=32768", kTraits, add_rmsnorm_in_registers,
     MathUnit::kF32, add_rmsnorm_fits_registers},
    {"any_layout", sm(90), "", kTraits, add_rmsnorm_any_layout},
};

}  // namespace fathom
