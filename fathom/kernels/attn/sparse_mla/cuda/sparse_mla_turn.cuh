// The rotation back of results: the last channels of a head are pairs, turned by the angle of the
// token's position before they are rounded.
#pragma once

#include "fathom/kernels/attn/sparse_mla/sparse_mla_plan.h"
#include "fathom/kernels/cuda/rotate.cuh"

namespace fathom::sparse_mla {

/// c and s of a pair.
using Angle = float2;

/// (a, b) -> (a c + b s, b c - a s)
__device__ __forceinline__ void turn_back(Angle angle, float& a, float& b) {
  cuda::rotate_pair<float>(a, b, angle.x, -angle.y);
}

// ---- 64 channels of 512 ----

inline constexpr int kTurned = 64;  ///< channels that the tensor cores' kernels turn, or none
inline constexpr int kTurnedPairs = kTurned / 2;
inline constexpr int kFirstTurned = 512 - kTurned;

__host__ __device__ constexpr bool is_turned(int column) {
  return static_cast<uint32_t>(column - kFirstTurned) < kTurned;
}

__host__ __device__ constexpr int pair_of(int column) {
  return (column - kFirstTurned) / 2;
}

/// Pairs of a row that lie side by side. Angles are in registers.
template <int kPairs>
struct TurnedColumns {
  bool turns;
  Angle angles[kPairs];

  __device__ __forceinline__ void operator()(int i, float& a, float& b) const {
    if (turns) turn_back(angles[i], a, b);
  }
};

/// Every fourth pair of 256 columns, as a lane of a product has them.
struct TurnedEighths {
  static constexpr int kFirst = (256 - kTurned) / 8;  ///< the first pair that is turned

  bool turns;
  Angle angles[kTurned / 8];

  __device__ __forceinline__ void operator()(int i, float& a, float& b) const {
    if (turns && i >= kFirst) turn_back(angles[i - kFirst], a, b);
  }
};

/// Rows whose angles, [kTurnedPairs], are in shared memory.
struct TurnedRows {
  bool turns;  ///< false: there are none
  const Angle* angles;

  __device__ __forceinline__ TurnedColumns<2> columns(int column) const {
    TurnedColumns<2> out{turns && is_turned(column), {}};
    if (!out.turns) return out;
    out.angles[0] = angles[pair_of(column)];
    out.angles[1] = angles[pair_of(column) + 1];
    return out;
  }

  __device__ __forceinline__ TurnedEighths eighths(int column) const {
    TurnedEighths out{turns && column >= 256, {}};
    if (!out.turns) return out;
#pragma unroll
    for (int i = 0; i < kTurned / 8; ++i)
      out.angles[i] = angles[pair_of(column + 8 * (TurnedEighths::kFirst + i))];
    return out;
  }
};

// ---- the operands ----

/// The table of a call and the position of each token. Read past the first cache, which would keep
/// what an earlier kernel may still write.
struct TurnTable {
  const int32_t* positions = nullptr;
  const float* rows = nullptr;  ///< null: nothing is turned
  int64_t stride = 0;
  int64_t num_rows = 0;
  int R = 0;

  __device__ __forceinline__ bool present() const { return rows != nullptr; }

  __device__ __forceinline__ int position(int64_t t) const {
    return present() ? __ldcg(positions + t) : -1;
  }

  /// The angle of a pair. A position that is no row, which the host could not see, turns nothing.
  __device__ __forceinline__ Angle angle(int position, int pair) const {
    if (position < 0 || position >= num_rows) return {1.0f, 0.0f};
    const float* row = rows + position * stride + pair;
    return {__ldcg(row), __ldcg(row + R / 2)};
  }

  /// Angles of the columns from `column` on.
  template <int kPairs>
  __device__ __forceinline__ TurnedColumns<kPairs> columns(int position, int column) const {
    TurnedColumns<kPairs> out{present() && is_turned(column), {}};
    if (!out.turns) return out;
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      out.angles[i] = angle(position, pair_of(column) + i);
    return out;
  }

  struct Asked {
    const TurnTable& table;
    int position;

    __device__ __forceinline__ TurnedColumns<2> columns(int column) const {
      return table.columns<2>(position, column);
    }
  };

  /// As mla_decode::merge_pieces() has it: loads the position.
  __device__ __forceinline__ Asked ask(int64_t t) const {
    return {*this, position(t)};
  }
};

inline TurnTable turn_table(const Call& c) {
  if (!c.table.present()) return {};
  return {.positions = c.positions.as<const int32_t>(),
          .rows = c.table.as<const float>(),
          .stride = c.table.stride(0),
          .num_rows = c.table.dim(0),
          .R = static_cast<int>(c.table.dim(1))};
}

}  // namespace fathom::sparse_mla
