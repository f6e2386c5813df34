// The rotation of pairs, shared by the kernels that rotate. A unit is four pairs: eight elements of
// a head, one load where pairs lie side by side.
#pragma once

#include <type_traits>

#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom::cuda {

/// Pairs of a unit.
inline constexpr int kPairs = kHalfVector;

/// By the angle of the position, or by that of the other sign.
enum class Turn : uint8_t { kForth, kBack };

/// A rotary table [P,R], and the position of each token: its row there.
struct RotaryTable {
  const void* data;
  int64_t stride;
  int64_t num_rows;
  const void* positions;
  bool wide;  ///< positions are int64, not int32
  int R;
  RopeStyle style;

  /// The angles of token t; null if its position, which the host cannot see, is no row.
  template <class Table>
  __device__ const Table* row(int64_t t) const {
    const int64_t position = wide ? static_cast<const int64_t*>(positions)[t]
                                  : int64_t{static_cast<const int32_t*>(positions)[t]};
    if (position < 0 || position >= num_rows) return nullptr;
    return static_cast<const Table*>(data) + position * stride;
  }

  /// The same, null where nothing turns. False if the position of the token is no row: it is left
  /// out then.
  __device__ bool find(int64_t t, const float** angles) const {
    *angles = R == 0 ? nullptr : row<float>(t);
    return R == 0 || *angles != nullptr;
  }
};

inline RotaryTable rotary_table(const View& positions, const View& table, RopeStyle style) {
  return {.data = table.data,
          .stride = table.stride(0),
          .num_rows = table.dim(0),
          .positions = positions.data,
          .wide = positions.format == Format::kI64,
          .R = static_cast<int>(table.dim(1)),
          .style = style};
}

/// As store_packed.
template <class T>
__device__ __forceinline__ void store_half(T* p, const PackedHalf<T>& half) {
  const auto& w = half.words;
  if constexpr (sizeof(half) == 16) {
    *reinterpret_cast<uint4*>(p) = make_uint4(w[0], w[1], w[2], w[3]);
  } else if constexpr (sizeof(half) == 8) {
    *reinterpret_cast<uint2*>(p) = make_uint2(w[0], w[1]);
  } else {
    *reinterpret_cast<PackedHalf<T>*>(p) = half;
  }
}

/// The pairs of a unit of a head of R rotated elements.
struct Pairs {
  // Of kInterleaved elements 8 unit + 2i and 8 unit + 2i + 1; of kHalfSplit 4 unit + i and
  // R/2 + 4 unit + i.
  float a[kPairs];
  float b[kPairs];
};

/// The same pairs as they lie in memory, so that many loads can be under way before one is looked
/// at. Of kHalfSplit the four a come first, then the four b.
template <class T>
struct PackedUnit {
  Packed<T> words;

  __device__ __forceinline__ void load(const T* head, int unit, int R, RopeStyle style) {
    if (style == RopeStyle::kInterleaved) {
      words = load_packed(head + kVector * unit);
      return;
    }
    const auto a = *reinterpret_cast<const PackedHalf<T>*>(head + kPairs * unit);
    const auto b = *reinterpret_cast<const PackedHalf<T>*>(head + R / 2 + kPairs * unit);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      words.words[i] = a.words[i];
      words.words[kHalf + i] = b.words[i];
    }
  }

  __device__ __forceinline__ void store(T* head, int unit, int R, RopeStyle style) const {
    if (style == RopeStyle::kInterleaved) {
      store_packed(head + kVector * unit, words);
      return;
    }
    PackedHalf<T> a;
    PackedHalf<T> b;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      a.words[i] = words.words[i];
      b.words[i] = words.words[kHalf + i];
    }
    store_half(head + kPairs * unit, a);
    store_half(head + R / 2 + kPairs * unit, b);
  }

  __device__ __forceinline__ Pairs pairs(RopeStyle style) const {
    float values[kVector];
    unpack(words, values);
    const bool alternate = style == RopeStyle::kInterleaved;
    Pairs pairs;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pairs.a[i] = alternate ? values[2 * i] : values[i];
      pairs.b[i] = alternate ? values[2 * i + 1] : values[kPairs + i];
    }
    return pairs;
  }

  __device__ __forceinline__ void take(const Pairs& pairs, RopeStyle style) {
    const bool alternate = style == RopeStyle::kInterleaved;
    float values[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float interleaved = i % 2 == 0 ? pairs.a[i / 2] : pairs.b[i / 2];
      const float half_split = i < kPairs ? pairs.a[i % kPairs] : pairs.b[i % kPairs];
      values[i] = alternate ? interleaved : half_split;
    }
    pack(values, words);
  }

 private:
  static constexpr int kHalf = sizeof(T);  // words of four elements
};

/// (a, b) -> (a c - b s, b c + a s). Products and sums are rounded to Term, which fuses nothing.
template <class Term>
__device__ __forceinline__ void rotate_pair(float& a, float& b, float c, float s) {
  const float ac = rounded<Term>(__fmul_rn(a, c));
  const float bs = rounded<Term>(__fmul_rn(b, s));
  const float bc = rounded<Term>(__fmul_rn(b, c));
  const float as = rounded<Term>(__fmul_rn(a, s));
  a = ac - bs;
  b = bc + as;
}

/// The angles of a unit, from a row of the table, c_0 .. c_{R/2-1} s_0 .. s_{R/2-1}.
struct Angles {
  float c[kPairs];
  float s[kPairs];

  template <class Table>
  __device__ __forceinline__ void load(const Table* table_row, int unit, int R) {
    load4(table_row + kPairs * unit, c);
    load4(table_row + R / 2 + kPairs * unit, s);
  }

  __device__ __forceinline__ void change_sign() {
#pragma unroll
    for (float& sine : s)
      sine = -sine;
  }

  template <class Term>
  __device__ __forceinline__ void rotate(Pairs& pairs) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      rotate_pair<Term>(pairs.a[i], pairs.b[i], c[i], s[i]);
  }
};

/// Heads that follow each other, `stride` elements apart.
template <class T>
struct HeadRun {
  T* first;  ///< null: there is nothing to write to
  int64_t stride;
  int count;

  __device__ T* head(int i) const { return first + i * stride; }
};

/// to[i] = scaled(rotated(from[i])): one unit of up to kHeads heads of token t, which its angles
/// are loaded once for. Nothing waits until all loads are under way; find_target() is called then.
/// Nothing is written for a token whose position is not in the table.
template <class Term,
          class Table,
          RopeStyle kStyle,
          int kHeads,
          Turn kTurn,
          class From,
          class FindTarget,
          class Scaling>
__device__ __forceinline__ void rotate_unit_of_style(const RotaryTable& table,
                                                     int64_t t,
                                                     int unit,
                                                     const HeadRun<From>& from,
                                                     const FindTarget& find_target,
                                                     const Scaling& scaling) {
  PackedUnit<std::remove_const_t<From>> held[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (i < from.count) held[i].load(from.head(i), unit, table.R, kStyle);
  }
  const Table* row = table.row<Table>(t);
  if (row == nullptr) return;
  Angles angles;
  angles.load(row, unit, table.R);
  if constexpr (kTurn == Turn::kBack) angles.change_sign();
  const auto to = find_target();
  if (to.first == nullptr) return;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (i >= from.count) continue;
    Pairs pairs = held[i].pairs(kStyle);
    angles.rotate<Term>(pairs);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      pairs.a[j] = scaling.apply(pairs.a[j]);
      pairs.b[j] = scaling.apply(pairs.b[j]);
    }
    PackedUnit<std::remove_pointer_t<decltype(to.first)>> result;
    result.take(pairs, kStyle);
    result.store(to.head(i), unit, table.R, kStyle);
  }
}

template <class Term,
          class Table,
          int kHeads,
          Turn kTurn = Turn::kForth,
          class From,
          class FindTarget,
          class Scaling>
__device__ __forceinline__ void rotate_unit(const RotaryTable& table,
                                            int64_t t,
                                            int unit,
                                            const HeadRun<From>& from,
                                            const FindTarget& find_target,
                                            const Scaling& scaling) {
  if (table.style == RopeStyle::kInterleaved) {
    rotate_unit_of_style<Term, Table, RopeStyle::kInterleaved, kHeads, kTurn>(table, t, unit, from,
                                                                              find_target, scaling);
  } else {
    rotate_unit_of_style<Term, Table, RopeStyle::kHalfSplit, kHeads, kTurn>(table, t, unit, from,
                                                                            find_target, scaling);
  }
}

/// What is stored is the value itself.
struct Unscaled {
  __device__ float apply(float x) const { return x; }
};

/// Where pair i of a head lies.
__device__ __forceinline__ int64_t first_of_pair(int64_t i, RopeStyle style) {
  return style == RopeStyle::kInterleaved ? 2 * i : i;
}

__device__ __forceinline__ int64_t second_of_pair(int64_t i, int64_t R, RopeStyle style) {
  return style == RopeStyle::kInterleaved ? 2 * i + 1 : R / 2 + i;
}

}  // namespace fathom::cuda
