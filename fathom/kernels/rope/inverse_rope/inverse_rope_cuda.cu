#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/quant/power_of_two_scale.cuh"
#include "fathom/kernels/rope/inverse_rope/inverse_rope.h"
#include "fathom/kernels/rope/inverse_rope/inverse_rope_rows.h"
#include "fathom/kernels/rope/rotate_heads.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// ---- inverse_rope ----

/// The last R channels of every head.
Rotation rotation_of(const InverseRope::Args& a) {
  const int64_t first = a.o.dim(2) - a.table.dim(1);
  Heads last = heads_of(a.o);
  last.data = a.o.as<std::byte>() + first * element_bytes(a.o.format);
  return {.q = last, .k = {}, .table = rotary_table(a.positions, a.table, RopeStyle::kInterleaved)};
}

// A block a token: any width and stride.
template <class A>
__global__ void __launch_bounds__(kFlatThreads) turn_tokens_back(Rotation r) {
  let_next_start();
  wait_for_previous();
  rotate_token<A, float, float, Turn::kBack>(r, blockIdx.x);
}

Status inverse_rope_vectors(Exec& ex, const InverseRope::Args& a) {
  return with_activation_type(a.o.format, [&]<class A>(A) {
    return run_rotate_units<A, float, float, Turn::kBack>(ex, rotation_of(a), a.o.dim(0));
  });
}

Status inverse_rope_tokens(Exec& ex, const InverseRope::Args& a) {
  const int64_t blocks = a.table.dim(1) == 0 ? 0 : a.o.dim(0);
  return with_activation_type(a.o.format, [&]<class A>(A) {
    return launch_kernel(ex, turn_tokens_back<A>, {.blocks = blocks, .threads = kFlatThreads},
                         rotation_of(a));
  });
}

bool inverse_rope_is_aligned(const InverseRope::Args& a) {
  return takes_vectors(a.o) && takes_vectors(a.table);
}

// ---- inverse_rope_quant ----

/// Groups of channels that share a scale, in vectors of eight.
constexpr int kVectorsOfGroup = kRopeQuantGroup / kVector;

/// Strides in elements.
struct QuantisedHeads {
  const void* o;
  int64_t o_token, o_head;
  E4m3* y;
  int64_t y_token, y_group;
  void* s;
  int64_t s_token, s_group;
  RotaryTable table;
  FastDivide heads_of_group;
  int D;

  template <class A>
  __device__ const A* head(int64_t t, uint32_t h) const {
    return static_cast<const A*>(o) + t * o_token + h * o_head;
  }
};

/// Where head h of a token goes.
struct HeadTarget {
  E4m3* codes;
  int64_t scale;  ///< element of s, one for each 128 channels from there on

  __device__ HeadTarget(const QuantisedHeads& q, int64_t t, uint32_t h) {
    const uint32_t g = q.heads_of_group.of(h);
    const int64_t channel = int64_t{h - g * q.heads_of_group.divisor} * q.D;
    codes = q.y + t * q.y_token + g * q.y_group + channel;
    scale = t * q.s_token + g * q.s_group + channel / kRopeQuantGroup;
  }
};

/// A vector of eight channels.
struct HeadVector {
  uint32_t head;
  int place;  ///< within the head
  bool exists;

  __device__ HeadVector(const FastDivide& vectors_of_head, uint32_t number, int left)
      : head(vectors_of_head.of(number)),
        place(static_cast<int>(number - head * vectors_of_head.divisor)),
        exists(left > 0) {}
};

/// Turns a vector back unless it lies in front of the rotated channels.
__device__ __forceinline__ void turn_back(const RotaryTable& table,
                                          const float* angles,
                                          int unit,
                                          float (&x)[kVector]) {
  if (unit < 0 || table.R == 0) return;
  Angles of_unit;
  of_unit.load(angles, unit, table.R);
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    rotate_pair<float>(x[2 * i], x[2 * i + 1], of_unit.c[i], -of_unit.s[i]);
}

// A thread kEach vectors of a token; half a warp has a group, so that a lane's vector exists where
// those of its group do.
template <class A, class S, int kEach>
__global__ void __launch_bounds__(kFlatThreads)
    quantise_vectors(QuantisedHeads q, FastDivide vectors_of_head, RowPieces pieces) {
  let_next_start();
  wait_for_previous();
  const PiecePlace piece = pieces.mine<kEach>();
  if (!piece.exists) return;
  const uint32_t first = piece.first + static_cast<uint32_t>(lane_id());
  Packed<A> held[kEach] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const HeadVector at(vectors_of_head, first + 32 * i, pieces.left(first + 32 * i));
    if (at.exists) held[i] = load_packed(q.head<A>(piece.row, at.head) + kVector * at.place);
  }
  const float* angles = nullptr;
  if (!q.table.find(piece.row, &angles)) return;
  const int first_turned = (q.D - q.table.R) / kVector;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const HeadVector at(vectors_of_head, first + 32 * i, pieces.left(first + 32 * i));
    float x[kVector];
    unpack(held[i], x);
    turn_back(q.table, angles, at.place - first_turned, x);
    float amax = 0.0f;
#pragma unroll
    for (float value : x)
      amax = fmaxf(amax, fabsf(value));
    const auto scale = PowerOfTwo::of_e4m3(combine_lanes<kVectorsOfGroup>(amax, Max()));
    if (!at.exists) continue;
    const float inverse = scale.inverse();
#pragma unroll
    for (float& value : x)
      value *= inverse;
    const HeadTarget to(q, piece.row, at.head);
    store8(to.codes + kVector * at.place, x);
    if (lane_id() % kVectorsOfGroup == 0)
      scale.store(static_cast<S*>(q.s) + to.scale + at.place / kVectorsOfGroup);
  }
}

// A warp a group, two pairs a lane: any stride and width of the rotation.
template <class A, class S>
__global__ void __launch_bounds__(kFlatThreads)
    quantise_groups(QuantisedHeads q, FastDivide groups_of_head, FlatItems groups) {
  let_next_start();
  wait_for_previous();
  const ItemPlace group = groups.place(int64_t{blockIdx.x} * (kFlatThreads / 32) + warp_id());
  if (!group.exists) return;
  const float* angles = nullptr;
  if (!q.table.find(group.row, &angles)) return;
  const uint32_t h = groups_of_head.of(static_cast<uint32_t>(group.item));
  const int number = group.item - static_cast<int>(h * groups_of_head.divisor);
  const int channel = static_cast<int>(kRopeQuantGroup) * number + kPairs * lane_id();
  const A* from = q.head<A>(group.row, h) + channel;
  const int R = q.table.R;
  float x[kPairs];
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; i += 2) {
    x[i] = load(from + i);
    x[i + 1] = load(from + i + 1);
    const int turned = channel + i - (q.D - R);
    if (turned >= 0)
      rotate_pair<float>(x[i], x[i + 1], angles[turned / 2], -angles[R / 2 + turned / 2]);
    amax = fmaxf(amax, fmaxf(fabsf(x[i]), fabsf(x[i + 1])));
  }
  const auto scale = PowerOfTwo::of_e4m3(combine_lanes(amax, Max()));
  const float inverse = scale.inverse();
  const HeadTarget to(q, group.row, h);
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    store(to.codes + channel + i, x[i] * inverse);
  if (lane_id() == 0) scale.store(static_cast<S*>(q.s) + to.scale + number);
}

QuantisedHeads quantised_heads_of(const InverseRopeQuant::Args& a) {
  return {.o = a.o.data,
          .o_token = a.o.stride(0),
          .o_head = a.o.stride(1),
          .y = a.y.as<E4m3>(),
          .y_token = a.y.stride(0),
          .y_group = a.y.stride(1),
          .s = a.s.data,
          .s_token = a.s.stride(0),
          .s_group = a.s.stride(1),
          .table = rotary_table(a.positions, a.table, RopeStyle::kInterleaved),
          .heads_of_group = FastDivide(a.y.dim(2) / a.o.dim(2)),
          .D = static_cast<int>(a.o.dim(2))};
}

/// Calls f(A{}, S{}) for the formats of o and of the scales.
template <class F>
Status with_types(const InverseRopeQuant::Args& a, F f) {
  return with_activation_type(a.o.format, [&]<class A>(A) {
    return a.s.format == Format::kF32 ? f(A{}, float{}) : f(A{}, Ue8m0{});
  });
}

Status inverse_rope_quant_vectors(Exec& ex, const InverseRopeQuant::Args& a) {
  const int64_t vectors = a.o.dim(2) / kVector;
  return with_types(a, [&]<class A, class S>(A, S) {
    return with_row_pieces<4>(ex, a.o.dim(0), a.o.dim(1) * vectors,
                              [&]<int kEach>(const RowPieces& pieces, const LaunchShape& shape) {
                                return launch_kernel(ex, quantise_vectors<A, S, kEach>, shape,
                                                     quantised_heads_of(a), FastDivide(vectors),
                                                     pieces);
                              });
  });
}

Status inverse_rope_quant_groups(Exec& ex, const InverseRopeQuant::Args& a) {
  const int64_t groups = a.o.dim(2) / kRopeQuantGroup;
  const FlatItems items = flat_items(a.o.dim(0), a.o.dim(1) * groups);
  const LaunchShape shape{.blocks = ceil_div(items.total, int64_t{kFlatThreads / 32}),
                          .threads = kFlatThreads};
  return with_types(a, [&]<class A, class S>(A, S) {
    return launch_kernel(ex, quantise_groups<A, S>, shape, quantised_heads_of(a),
                         FastDivide(groups), items);
  });
}

bool inverse_rope_quant_is_aligned(const InverseRopeQuant::Args& a) {
  return takes_vectors(a.o) && takes_vectors(a.table) && takes_vectors(a.y);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<InverseRope> inverse_rope_cuda{
    {"vectors", sm(90), "D%8==0, R%8==0", kTraits, inverse_rope_vectors, MathUnit::kF32,
     inverse_rope_is_aligned},
    {"tokens", sm(90), "", kTraits, inverse_rope_tokens},
};

constinit const VariantTable<InverseRopeQuant> inverse_rope_quant_cuda{
    {"vectors", sm(90), "R%8==0", kTraits, inverse_rope_quant_vectors, MathUnit::kF32,
     inverse_rope_quant_is_aligned},
    {"groups", sm(90), "", kTraits, inverse_rope_quant_groups},
};

}  // namespace fathom
