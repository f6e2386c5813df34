#include <limits>

#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/products/tiles.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// e^x for a result of type T: by the approximation of the hardware where T has 16 bits, whose
/// error (2^-18 for arguments up to 30) is far below the rounding.
template <class T>
__device__ float exponential(float x) {
  return __expf(x);
}

template <>
__device__ float exponential<float>(float x) {
  return expf(x);
}

struct Silu {
  template <class T>
  static __device__ float of(float z) {
    return z / (1.0f + exponential<T>(-z));
  }
};

/// erfc(x) for a result of type T. Where T has 16 bits: a rational fit of its logarithm for x >= 0
/// (Press et al., "Numerical Recipes", 6.2: 1.2e-7 of the value), the rest by symmetry.
template <class T>
__device__ float complement_of_erf(float x) {
  const float t = __fdividef(1.0f, fmaf(0.5f, fabsf(x), 1.0f));
  float fit = 0.17087277f;
  fit = fmaf(fit, t, -0.82215223f);
  fit = fmaf(fit, t, 1.48851587f);
  fit = fmaf(fit, t, -1.13520398f);
  fit = fmaf(fit, t, 0.27886807f);
  fit = fmaf(fit, t, -0.18628806f);
  fit = fmaf(fit, t, 0.09678418f);
  fit = fmaf(fit, t, 0.37409196f);
  fit = fmaf(fit, t, 1.00002368f);
  fit = fmaf(fit, t, -1.26551223f);
  const float upper = t * __expf(fmaf(-x, x, fit));
  return x >= 0.0f ? upper : 2.0f - upper;
}

template <>
__device__ float complement_of_erf<float>(float x) {
  return erfcf(x);
}

struct Gelu {
  template <class T>
  static __device__ float of(float z) {
    constexpr float kRootHalf = 0.70710678f;
    return z * (0.5f * complement_of_erf<T>(-z * kRootHalf));
  }
};

struct GeluTanh {
  template <class T>
  static __device__ float of(float z) {
    constexpr float kTwoRootTwoOverPi = 1.59576912f;
    const float twice_u = kTwoRootTwoOverPi * (z + 0.044715f * z * z * z);
    return z / (1.0f + exponential<T>(-twice_u));
  }
};

/// A result; the limit is infinite where there is none.
template <class Act, class T>
__device__ __forceinline__ float gated(float gate, float up, float limit) {
  return Act::template of<T>(at_most(gate, limit)) * within(up, limit);
}

// Eight results a thread.
template <class Act, class T>
__global__ void __launch_bounds__(kTileThreads)
    gated_vectors(Rows<const T> x, Rows<T> y, RowTiles tiles, float limit) {
  let_next_start();
  wait_for_previous();
  const VectorPlace at = tiles.place();
  if (!at.exists) return;
  const T* row = x[at.row] + kVector * at.vector;
  float gate[kVector];
  float up[kVector];
  load8(row, gate);
  load8(row + int64_t{kVector} * tiles.num_vectors, up);
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    gate[i] = gated<Act, T>(gate[i], up[i], limit);
  store8(y[at.row] + kVector * at.vector, gate);
}

// One result a thread: any width, stride and format.
template <class Act>
__global__ void __launch_bounds__(kTileThreads)
    gated_elements(AnyRows x, AnyRows y, RowTiles tiles, float limit) {
  let_next_start();
  wait_for_previous();
  const VectorPlace at = tiles.place();
  if (!at.exists) return;
  const float gate = x.load(at.row, at.vector);
  const float up = x.load(at.row, at.vector + tiles.num_vectors);
  y.store(at.row, at.vector, gated<Act, float>(gate, up, limit));
}

float limit_of(const SiluMul::Args& a) {
  return a.limit > 0.0f ? a.limit : std::numeric_limits<float>::infinity();
}

template <class Act>
Status run_vectors(Exec& ex, const SiluMul::Args& a) {
  const RowTiles tiles = row_tiles(a.y.dim(0), a.y.dim(1) / kVector);
  return with_float_type(a.x.format, [&]<class T>(T) {
    return launch_kernel(ex, gated_vectors<Act, T>, shape_of(tiles), rows_of<const T>(a.x),
                         rows_of<T>(a.y), tiles, limit_of(a));
  });
}

template <class Act>
Status run_elements(Exec& ex, const SiluMul::Args& a) {
  const RowTiles tiles = row_tiles(a.y.dim(0), a.y.dim(1));
  return launch_kernel(ex, gated_elements<Act>, shape_of(tiles), any_rows(a.x), any_rows(a.y),
                       tiles, limit_of(a));
}

bool is_aligned(const SiluMul::Args& a) {
  return takes_vectors(a.x) && takes_vectors(a.y);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<SiluMul> silu_mul_cuda{
    {"vectors", sm(90), "I%8==0", kTraits, run_vectors<Silu>, MathUnit::kF32, is_aligned},
    {"elements", sm(90), "", kTraits, run_elements<Silu>},
};

constinit const VariantTable<GeluMul> gelu_mul_cuda{
    {"vectors", sm(90), "I%8==0", kTraits, run_vectors<Gelu>, MathUnit::kF32, is_aligned},
    {"elements", sm(90), "", kTraits, run_elements<Gelu>},
};

constinit const VariantTable<GeluTanhMul> gelu_tanh_mul_cuda{
    {"vectors", sm(90), "I%8==0", kTraits, run_vectors<GeluTanh>, MathUnit::kF32, is_aligned},
    {"elements", sm(90), "", kTraits, run_elements<GeluTanh>},
};

}  // namespace fathom
