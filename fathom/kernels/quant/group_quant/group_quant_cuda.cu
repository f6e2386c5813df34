#include <bit>
#include <cfloat>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/quant/group_quant/group_quant.h"
#include "fathom/kernels/quant/group_quant/group_quant_rows.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// A call, rows counted through all experts.
struct Groups {
  const void* x;
  void* q;
  void* s;
  int64_t x_expert, x_row;  // strides
  int64_t q_expert, q_row;
  int64_t s_expert, s_row;
  const int32_t* masked_rows;  // null: all T rows count
  int64_t T;
  int64_t D;
  int num_groups;
  int group_size;
  float eps, min, max;
  bool clamps;  // limits are narrower than the format's own, to which codes saturate
  Format x_format, q_format;
  GroupScaleLayout layout;
  GroupScaleRounding rounding;
  GroupRecipe recipe;
  GroupInput input;

  __device__ bool counts(int64_t e, int64_t t) const {
    return masked_rows == nullptr || t < masked_rows[e];
  }
};

/// y of the contract where it is the gated activation of x, rounded to A after each step.
template <class A>
__device__ float gated(float gate, float up) {
  const float silu = rounded<A>(gate / (1.0f + expf(-gate)));
  return rounded<A>(__fmul_rn(silu, up));
}

/// Within the limits; NaN stays NaN.
__device__ float limited(float value, const Groups& g) {
  if (value < g.min) return g.min;
  return value > g.max ? g.max : value;
}

__device__ float quotient(float y, float number, const Groups& g) {
  const float v = g.recipe == GroupRecipe::kDivide ? __fdiv_rn(y, number) : y * number;
  return limited(v, g);
}

/// Toward zero; NaN is 0.
__device__ int8_t int8_code(float value) {
  return isnan(value) ? int8_t{0} : static_cast<int8_t>(value);
}

/// The smallest power of two that is not below the scale, as float32 and as its biased exponent.
__device__ float power_of_two_up(float scale) {
  return to_float(ue8m0_round_up(scale));
}

__device__ void store_scale(const Groups& g, int64_t e, int64_t t, int group, float scale) {
  if (g.layout == GroupScaleLayout::kPackedUe8m0) {
    // Four groups share a word; the last group of a row clears the bytes that are missing.
    auto* word = static_cast<int32_t*>(g.s) + e * g.s_expert + group / 4 * g.s_row + t;
    auto* bytes = reinterpret_cast<uint8_t*>(word);
    bytes[group % 4] = ue8m0_round_up(scale).bits;
    if (group + 1 == g.num_groups) {
      for (int i = group % 4 + 1; i < 4; ++i)
        bytes[i] = 0;
    }
    return;
  }
  auto* scales = static_cast<float*>(g.s) + e * g.s_expert;
  scales[g.layout == GroupScaleLayout::kRowMajor ? t * g.s_row + group : group * g.s_row + t] =
      scale;
}

struct GroupScale {
  float scale;
  float number;  // what values are divided by or multiplied with
};

/// The scale of a group whose largest magnitude is amax, by the recipe of the call.
__device__ GroupScale scale_of(const Groups& g, float amax) {
  const bool divides = g.recipe == GroupRecipe::kDivide;
  const bool rounds = g.rounding == GroupScaleRounding::kPowerOfTwoUp;
  const float largest = fmaxf(amax, g.eps);
  float scale = divides ? __fdiv_rn(largest, g.max) : largest * __frcp_rn(g.max);
  scale = fmaxf(scale, FLT_MIN);
  if (rounds) scale = power_of_two_up(scale);
  if (divides) return {scale, scale};
  if (rounds) return {scale, __frcp_rn(scale)};
  return {scale, __fdiv_rn(g.max, fmaxf(largest, g.max * FLT_MIN))};
}

template <class Q>
__device__ void store_codes(Q* q, const float (&values)[kVector]) {
  store8(q, values);
}

template <>
__device__ void store_codes<int8_t>(int8_t* q, const float (&values)[kVector]) {
  *reinterpret_cast<uint2*>(q) = {int8_codes(values[0], values[1], values[2], values[3]),
                                  int8_codes(values[4], values[5], values[6], values[7])};
}

/// y / number or y * number, within the limits.
__device__ void make_quotients(float (&y)[kVector], const GroupScale& scale, const Groups& g) {
  if (g.recipe == GroupRecipe::kDivide) {
    Divisor(scale.number).of_all(y);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      y[i] *= scale.number;
  }
  if (!g.clamps) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    y[i] = limited(y[i], g);
}

/// gated() of eight values. Short: the format rounds anyway and no exponential comes near the ends
/// of float32, so that the division may be the short one.
template <bool kShort, class A>
__device__ Packed<A> gated(const Packed<A>& gates, const Packed<A>& ups) {
  float values[kVector];
  unpack(gates, values);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float denominator = 1.0f + expf(-values[i]);
    values[i] = kShort ? divide_near(values[i], denominator) : values[i] / denominator;
  }
  Packed<A> silu;
  pack(values, silu);
  return packed_product(silu, ups);
}

/// All that a thread holds.
template <class A, int kEach>
__device__ void gate_all(Packed<A> (&held)[kEach], const Packed<A> (&ups)[kEach]) {
  if (sizeof(A) == 2 && largest_size<Nan::kKept>(held) < 80.0f) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      held[i] = gated<true>(held[i], ups[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      held[i] = gated<false>(held[i], ups[i]);
  }
}

/// Where the kEach vectors of a thread lie: 2^log2_lanes neighbouring lanes hold a group, whose
/// vectors they take in turn.
template <int kEach>
struct GroupPlace {
  int group;      // of the row
  int vector;     // the first of this thread, within the row
  int step;       // from one vector of this thread to the next
  bool is_first;  // of the lanes of the group

  __device__ GroupPlace(uint32_t first_of_piece, int log2_lanes) {
    const int group_of_piece = lane_id() >> log2_lanes;
    const int lane = lane_id() - (group_of_piece << log2_lanes);
    group = static_cast<int>(first_of_piece / kEach >> log2_lanes) + group_of_piece;
    vector = group * (kEach << log2_lanes) + lane;
    step = 1 << log2_lanes;
    is_first = lane == 0;
  }
};

// Items are vectors of eight. A piece holds whole groups, so that a thread has all its vectors or
// none.
template <class A, class Q, bool kGated, int kEach>
__global__ void __launch_bounds__(kFlatThreads)
    quantise_vectors(Groups g, int log2_lanes, RowPieces pieces) {
  let_next_start();
  wait_for_previous();
  const PiecePlace piece = pieces.mine<kEach>();
  if (!piece.exists) return;
  const RowOfGroup row(piece.row, g.T);
  if (!g.counts(row.group, row.row)) return;
  const GroupPlace<kEach> at(piece.first, log2_lanes);
  const bool exists = at.vector < pieces.items_per_row;
  const A* x = static_cast<const A*>(g.x) + row.group * g.x_expert + row.row * g.x_row +
               int64_t{kVector} * at.vector;
  Packed<A> held[kEach] = {};
  Packed<A> ups[kGated ? kEach : 1] = {};
#pragma unroll
  for (int i = 0; exists && i < kEach; ++i) {
    held[i] = load_packed(x + kVector * at.step * i);
    if constexpr (kGated) ups[i] = load_packed(x + g.D + kVector * at.step * i);
  }
  if constexpr (kGated) gate_all(held, ups);
  float amax = largest_size<Nan::kLeftOut>(held);
  for (int offset = at.step / 2; offset > 0; offset /= 2)
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, offset));
  if (!exists) return;
  const GroupScale scale = scale_of(g, amax);
  if (at.is_first) store_scale(g, row.group, row.row, at.group, scale.scale);
  Q* q = static_cast<Q*>(g.q) + row.group * g.q_expert + row.row * g.q_row +
         int64_t{kVector} * at.vector;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float y[kVector];
    unpack(held[i], y);
    make_quotients(y, scale, g);
    store_codes(q + kVector * at.step * i, y);
  }
}

__device__ float input_value(const Groups& g, int64_t row, int64_t d) {
  const float gate = load_any(g.x, g.x_format, row + d);
  if (g.input == GroupInput::kPlain) return gate;
  const float up = load_any(g.x, g.x_format, row + g.D + d);
  if (g.x_format == Format::kBf16) return gated<Bf16>(gate, up);
  return g.x_format == Format::kF16 ? gated<F16>(gate, up) : gated<float>(gate, up);
}

// A warp a group: any size, stride and format. A row of the tiling is a row of groups.
__global__ void __launch_bounds__(kFlatThreads) quantise_groups(Groups g, int64_t num_rows) {
  let_next_start();
  wait_for_previous();
  const int64_t at = int64_t{blockIdx.x} * (kFlatThreads / 32) + warp_id();
  const int64_t row = at / g.num_groups;
  const auto group = static_cast<int>(at - row * g.num_groups);
  if (row >= num_rows) return;
  const int64_t e = row / g.T;
  const int64_t t = row - e * g.T;
  if (!g.counts(e, t)) return;
  const int64_t x = e * g.x_expert + t * g.x_row;
  const int64_t begin = int64_t{group} * g.group_size;
  float amax = 0.0f;
  for (int i = lane_id(); i < g.group_size; i += 32)
    amax = fmaxf(amax, fabsf(input_value(g, x, begin + i)));
  const GroupScale scale = scale_of(g, combine_lanes(amax, Max()));
  for (int i = lane_id(); i < g.group_size; i += 32) {
    const float code = quotient(input_value(g, x, begin + i), scale.number, g);
    const int64_t place = e * g.q_expert + t * g.q_row + begin + i;
    if (g.q_format == Format::kE4m3) {
      store(static_cast<E4m3*>(g.q) + place, code);
    } else {
      static_cast<int8_t*>(g.q)[place] = int8_code(code);
    }
  }
  if (lane_id() == 0) store_scale(g, e, t, group, scale.scale);
}

Groups groups_of(const GroupQuantArgs& a) {
  const GroupLimits limits = group_limits(a);
  const bool fp8 = a.q.format == Format::kE4m3;
  const float least = fp8 ? -kE4m3Max : -128.0f;
  const float most = fp8 ? kE4m3Max : 127.0f;
  return {.x = a.x.data,
          .q = a.q.data,
          .s = a.s.data,
          .x_expert = a.x.stride(0),
          .x_row = a.x.stride(1),
          .q_expert = a.q.stride(0),
          .q_row = a.q.stride(1),
          .s_expert = a.s.stride(0),
          .s_row = a.s.stride(1),
          .masked_rows = a.masked_rows.present() ? a.masked_rows.as<const int32_t>() : nullptr,
          .T = a.x.dim(1),
          .D = a.q.dim(2),
          .num_groups = static_cast<int>(a.q.dim(2) / a.group_size),
          .group_size = static_cast<int>(a.group_size),
          .eps = a.eps,
          .min = limits.min,
          .max = limits.max,
          .clamps = limits.min > least || limits.max < most,
          .x_format = a.x.format,
          .q_format = a.q.format,
          .layout = a.layout,
          .rounding = a.rounding,
          .recipe = a.recipe,
          .input = a.input};
}

template <class A, class Q, bool kGated>
Status launch_vectors(Exec& ex, const GroupQuantArgs& a) {
  const auto vectors_per_group = static_cast<uint32_t>(a.group_size / kVector);
  const auto launch = [&]<int kEach>(const RowPieces& pieces, const LaunchShape& shape) {
    return launch_kernel(ex, quantise_vectors<A, Q, kGated, kEach>, shape, groups_of(a),
                         std::countr_zero(vectors_per_group / kEach), pieces);
  };
  const int64_t rows = a.x.dim(0) * a.x.dim(1);
  const int64_t vectors = a.q.dim(2) / kVector;
  // Two lanes side by side read a whole sector.
  if (vectors_per_group >= 8) return with_row_pieces<4>(ex, rows, vectors, launch);
  return with_row_pieces<1>(ex, rows, vectors, launch);
}

Status run_vectors(Exec& ex, const GroupQuantArgs& a) {
  return with_float_type(a.x.format, [&]<class A>(A) {
    const bool fp8 = a.q.format == Format::kE4m3;
    if (a.input == GroupInput::kSiluMul) {
      return fp8 ? launch_vectors<A, E4m3, true>(ex, a) : launch_vectors<A, int8_t, true>(ex, a);
    }
    return fp8 ? launch_vectors<A, E4m3, false>(ex, a) : launch_vectors<A, int8_t, false>(ex, a);
  });
}

Status run_groups(Exec& ex, const GroupQuantArgs& a) {
  const Groups g = groups_of(a);
  const int64_t rows = a.x.dim(0) * a.x.dim(1);
  const int64_t warps = rows * g.num_groups;
  constexpr int kWarpsPerBlock = kFlatThreads / 32;
  return launch_kernel(
      ex, quantise_groups,
      {.blocks = (warps + kWarpsPerBlock - 1) / kWarpsPerBlock, .threads = kFlatThreads}, g, rows);
}

/// Groups that lie in a power of two of lanes of one warp.
bool is_aligned(const GroupQuantArgs& a) {
  const int64_t lanes = a.group_size / kVector;
  return a.group_size % kVector == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0 &&
         takes_vectors(a.x) && takes_vectors(a.q);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<GroupQuantFp8> group_quant_fp8_cuda{
    {"vectors", sm(90), "", kTraits, run_vectors, MathUnit::kF32, is_aligned},
    {"groups", sm(90), "", kTraits, run_groups},
};

constinit const VariantTable<GroupQuantInt8> group_quant_int8_cuda{
    {"vectors", sm(90), "", kTraits, run_vectors, MathUnit::kF32, is_aligned},
    {"groups", sm(90), "", kTraits, run_groups},
};

constinit const VariantTable<GroupQuant8Bit> group_quant_8bit_cuda{
    {"vectors", sm(90), "", kTraits, run_vectors, MathUnit::kF32, is_aligned},
    {"groups", sm(90), "", kTraits, run_groups},
};

}  // namespace fathom
