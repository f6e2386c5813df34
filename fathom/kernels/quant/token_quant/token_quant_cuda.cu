#include <cfloat>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/quant/token_quant/token_quant.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// The largest magnitude of the block's row, NaN left out.
__device__ float largest_of_block(float amax, float* scratch) {
  return combine_block(amax, scratch, Max());
}

/// Calls f.template operator()<kVectors>(threads), by the width of a row alone.
template <class F>
Status with_row_shape(int num_vectors, F f) {
  const auto threads = [&](int each) { return ((num_vectors + each - 1) / each + 31) / 32 * 32; };
  if (num_vectors <= 512) return f.template operator()<1>(threads(1));
  if (num_vectors <= 1024) return f.template operator()<2>(threads(2));
  return f.template operator()<4>(threads(4));
}

// ---- token_quant_fp8 ----

/// What a row is multiplied by, and the scale that undoes it: recipe kFp8PerToken.
struct Fp8Row {
  float scale;
  float factor;
};

__device__ Fp8Row fp8_row(float amax) {
  if (amax == 0.0f) return {0.0f, 1.0f};
  const float scale = fmaxf(__fdiv_rn(amax, kE4m3Max), FLT_MIN);
  return {scale, __frcp_rn(scale)};
}

// A block a row, which stays in registers: kVectors groups of eight elements in each thread.
template <class A, int kVectors>
__global__ void __launch_bounds__(1024)
    token_fp8_in_registers(Rows<const A> x, Rows<E4m3> q, Rows<float> s, int num_vectors) {
  __shared__ float scratch[32];
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  Packed<A> held[kVectors];
  float amax = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * static_cast<int>(blockDim.x);
    if (i < num_vectors) held[v] = load_packed(x[t] + kVector * i);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * static_cast<int>(blockDim.x);
    if (i >= num_vectors) continue;
    float values[kVector];
    unpack(held[v], values);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      amax = fmaxf(amax, fabsf(values[j]));
  }
  const Fp8Row row = fp8_row(largest_of_block(amax, scratch));
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * static_cast<int>(blockDim.x);
    if (i >= num_vectors) continue;
    float values[kVector];
    unpack(held[v], values);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      values[j] *= row.factor;
    store8(q[t] + kVector * i, values);
  }
  if (threadIdx.x == 0) *s[t] = row.scale;
}

__global__ void __launch_bounds__(256)
    token_fp8_any(AnyRows x, Rows<E4m3> q, Rows<float> s, int64_t D) {
  __shared__ float scratch[32];
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  float amax = 0.0f;
  for (int64_t d = threadIdx.x; d < D; d += blockDim.x)
    amax = fmaxf(amax, fabsf(x.load(t, d)));
  const Fp8Row row = fp8_row(largest_of_block(amax, scratch));
  for (int64_t d = threadIdx.x; d < D; d += blockDim.x)
    store(q[t] + d, x.load(t, d) * row.factor);
  if (threadIdx.x == 0) *s[t] = row.scale;
}

Status fp8_in_registers(Exec& ex, const TokenQuantFp8::Args& a) {
  const auto num_vectors = static_cast<int>(a.x.dim(1) / kVector);
  return with_float_type(a.x.format, [&]<class A>(A) {
    return with_row_shape(num_vectors, [&]<int kVectors>(int threads) {
      return launch_kernel(ex, token_fp8_in_registers<A, kVectors>,
                           {.blocks = a.x.dim(0), .threads = threads}, rows_of<const A>(a.x),
                           rows_of<E4m3>(a.q), rows_of<float>(a.s), num_vectors);
    });
  });
}

Status fp8_any_layout(Exec& ex, const TokenQuantFp8::Args& a) {
  return launch_kernel(ex, token_fp8_any, {.blocks = a.x.dim(0), .threads = 256}, any_rows(a.x),
                       rows_of<E4m3>(a.q), rows_of<float>(a.s), a.x.dim(1));
}

bool fp8_fits_registers(const TokenQuantFp8::Args& a) {
  return takes_vectors(a.x) && takes_vectors(a.q);
}

// ---- token_quant_int8 ----

struct Int8Out {
  Rows<int8_t> q;
  void* scales;
  Format scale_format;
  F16* sums;  // null: not asked for

  __device__ void store_row(int64_t t, float largest, double sum) const {
    store_any(scales, scale_format, t, __fdiv_rn(largest, 127.0f));
    if (sums != nullptr) store(sums + t, static_cast<float>(sum));
  }
};

/// Half away from zero; NaN is 0.
__device__ int8_t int8_code(float value) {
  return isnan(value) ? int8_t{0} : static_cast<int8_t>(roundf(value));
}

/// The sum of the values of all threads of the block, in an order that the number of threads alone
/// decides; only thread 0 has it.
__device__ double sum_of_block(double sum, double* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
  if (lane_id() == 0) scratch[warp_id()] = sum;
  __syncthreads();
  double total = 0;
  for (int w = 0; threadIdx.x == 0 && w < static_cast<int>(blockDim.x) / 32; ++w)
    total += scratch[w];
  return total;
}

/// Largest magnitude of a row, not below the floor of the recipe, and its sum.
struct RowFacts {
  float largest;
  double sum;

  __device__ RowFacts(float amax, double sum_of_thread, bool wants_sum) {
    __shared__ float maxima[32];
    __shared__ double sums[32];
    largest = fmaxf(largest_of_block(amax, maxima), 1e-10f);
    sum = wants_sum ? sum_of_block(sum_of_thread, sums) : 0.0;
  }
};

// As token_fp8_in_registers.
template <class A, int kVectors>
__global__ void __launch_bounds__(1024)
    token_int8_in_registers(Rows<const A> x, Int8Out out, int num_vectors) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  Packed<A> held[kVectors];
  float amax = 0.0f;
  double sum = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * static_cast<int>(blockDim.x);
    if (i < num_vectors) held[v] = load_packed(x[t] + kVector * i);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * static_cast<int>(blockDim.x);
    if (i >= num_vectors) continue;
    float values[kVector];
    unpack(held[v], values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      amax = fmaxf(amax, fabsf(values[j]));
      if (out.sums != nullptr) sum += static_cast<double>(values[j]);
    }
  }
  const RowFacts row(amax, sum, out.sums != nullptr);
  const float factor = __fdiv_rn(127.0f, row.largest);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * static_cast<int>(blockDim.x);
    if (i >= num_vectors) continue;
    float values[kVector];
    unpack(held[v], values);
    uint32_t words[2] = {};
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      words[j / 4] |= uint32_t{static_cast<uint8_t>(int8_code(values[j] * factor))}
                      << (8 * (j % 4));
    *reinterpret_cast<uint2*>(out.q[t] + kVector * i) = {words[0], words[1]};
  }
  if (threadIdx.x == 0) out.store_row(t, row.largest, row.sum);
}

__global__ void __launch_bounds__(256) token_int8_any(AnyRows x, Int8Out out, int64_t D) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  float amax = 0.0f;
  double sum = 0;
  for (int64_t d = threadIdx.x; d < D; d += blockDim.x) {
    const float value = x.load(t, d);
    amax = fmaxf(amax, fabsf(value));
    sum += static_cast<double>(value);
  }
  const RowFacts row(amax, sum, out.sums != nullptr);
  const float factor = __fdiv_rn(127.0f, row.largest);
  for (int64_t d = threadIdx.x; d < D; d += blockDim.x)
    out.q[t][d] = int8_code(x.load(t, d) * factor);
  if (threadIdx.x == 0) out.store_row(t, row.largest, row.sum);
}

Int8Out int8_out(const TokenQuantInt8::Args& a) {
  return {.q = rows_of<int8_t>(a.q),
          .scales = a.s.data,
          .scale_format = a.s.format,
          .sums = a.sums.present() ? a.sums.as<F16>() : nullptr};
}

Status int8_in_registers(Exec& ex, const TokenQuantInt8::Args& a) {
  const auto num_vectors = static_cast<int>(a.x.dim(1) / kVector);
  return with_float_type(a.x.format, [&]<class A>(A) {
    return with_row_shape(num_vectors, [&]<int kVectors>(int threads) {
      return launch_kernel(ex, token_int8_in_registers<A, kVectors>,
                           {.blocks = a.x.dim(0), .threads = threads}, rows_of<const A>(a.x),
                           int8_out(a), num_vectors);
    });
  });
}

bool int8_fits_registers(const TokenQuantInt8::Args& a) {
  return takes_vectors(a.x) && takes_vectors(a.q);
}

Status int8_any_layout(Exec& ex, const TokenQuantInt8::Args& a) {
  return launch_kernel(ex, token_int8_any, {.blocks = a.x.dim(0), .threads = 256}, any_rows(a.x),
                       int8_out(a), a.x.dim(1));
}

// ---- tensor_quant_fp8 ----

template <class A, int kEach>
__global__ void __launch_bounds__(kFlatThreads)
    tensor_fp8_vectors(Rows<const A> x, const float* s, Rows<E4m3> q, RowPieces pieces) {
  let_next_start();
  wait_for_previous();
  const PiecePlace at = pieces.mine<kEach>();
  if (!at.exists) return;
  const uint32_t first = at.first + static_cast<uint32_t>(lane_id());
  const int left = pieces.left(first);
  const A* from = x[at.row] + int64_t{kVector} * first;
  E4m3* to = q[at.row] + int64_t{kVector} * first;
  Packed<A> held[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (32 * i < left) held[i] = load_packed(from + kVector * 32 * i);
  }
  const Divisor scale(*s);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (32 * i >= left) return;
    float values[kVector];
    unpack(held[i], values);
    scale.of_all(values);
    store8(to + kVector * 32 * i, values);
  }
}

__global__ void __launch_bounds__(kFlatThreads)
    tensor_fp8_elements(AnyRows x, const float* s, Rows<E4m3> q, FlatItems items) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (at.exists) store(q[at.row] + at.item, __fdiv_rn(x.load(at.row, at.item), *s));
}

/// Rows without gaps are one row, so that narrow ones do not leave lanes idle.
Status tensor_vectors(Exec& ex, const TensorQuantFp8::Args& a) {
  const int64_t num_vectors = a.x.dim(1) / kVector;
  const int64_t all_vectors = a.x.dim(0) * num_vectors;
  const bool is_one_row =
      a.x.stride(0) == a.x.dim(1) && a.q.stride(0) == a.x.dim(1) && all_vectors >> 31 == 0;
  const int64_t num_rows = is_one_row ? 1 : a.x.dim(0);
  const int64_t vectors_per_row = is_one_row ? all_vectors : num_vectors;
  return with_float_type(a.x.format, [&]<class A>(A) {
    return with_row_pieces<4>(ex, num_rows, vectors_per_row,
                              [&]<int kEach>(const RowPieces& pieces, const LaunchShape& shape) {
                                return launch_kernel(ex, tensor_fp8_vectors<A, kEach>, shape,
                                                     rows_of<const A>(a.x), a.s.as<const float>(),
                                                     rows_of<E4m3>(a.q), pieces);
                              });
  });
}

Status tensor_elements(Exec& ex, const TensorQuantFp8::Args& a) {
  const FlatItems items = flat_items(a.x.dim(0), a.x.dim(1));
  return launch_kernel(ex, tensor_fp8_elements, one_item_each(items), any_rows(a.x),
                       a.s.as<const float>(), rows_of<E4m3>(a.q), items);
}

bool tensor_is_aligned(const TensorQuantFp8::Args& a) {
  return takes_vectors(a.x) && takes_vectors(a.q);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<TokenQuantFp8> token_quant_fp8_cuda{
    {"in_registers", sm(90), "D%8==0, D<=32768, D>=8", kTraits, fp8_in_registers, MathUnit::kF32,
     fp8_fits_registers},
    {"any_layout", sm(90), "", kTraits, fp8_any_layout},
};

constinit const VariantTable<TokenQuantInt8> token_quant_int8_cuda{
    {"in_registers", sm(90), "D%8==0, D<=32768, D>=8", kTraits, int8_in_registers, MathUnit::kF32,
     int8_fits_registers},
    {"any_layout", sm(90), "", kTraits, int8_any_layout},
};

constinit const VariantTable<TensorQuantFp8> tensor_quant_fp8_cuda{
    {"vectors", sm(90), "D%8==0", kTraits, tensor_vectors, MathUnit::kF32, tensor_is_aligned},
    {"elements", sm(90), "", kTraits, tensor_elements},
};

}  // namespace fathom
