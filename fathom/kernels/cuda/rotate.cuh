// The rotation of pairs, shared by the kernels that rotate. A unit is four pairs: eight elements of
// a head, one load where pairs lie side by side.
#pragma once

#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom::cuda {

/// Pairs of a unit.
inline constexpr int kPairs = kVector / 2;

/// Row of a rotary table for token t; null if the position, which the host cannot see, is no row.
struct TablePlace {
  const void* positions;
  bool wide;  ///< positions are int64, not int32
  int64_t rows;

  __device__ int64_t row(int64_t t) const {
    const int64_t position = wide ? static_cast<const int64_t*>(positions)[t]
                                  : int64_t{static_cast<const int32_t*>(positions)[t]};
    return position >= 0 && position < rows ? position : -1;
  }
};

inline TablePlace table_place(const View& positions, const View& table) {
  return {positions.data, positions.format == Format::kI64, table.dim(0)};
}

/// Four elements on an address that is a multiple of their bytes.
template <class T>
struct alignas(sizeof(T) * kPairs) PackedPairs {
  uint32_t words[sizeof(T)];
};

template <class T>
__device__ __forceinline__ void load4(const T* p, float (&out)[kPairs]) {
  const auto half = *reinterpret_cast<const PackedPairs<T>*>(p);
  Packed<T> whole{};
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)); ++i)
    whole.words[i] = half.words[i];
  float values[kVector];
  unpack(whole, values);
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    out[i] = values[i];
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

  __device__ __forceinline__ void load(const T* head, int unit, int64_t R, RopeStyle style) {
    if (style == RopeStyle::kInterleaved) {
      words = load_packed(head + kVector * unit);
      return;
    }
    const auto a = *reinterpret_cast<const PackedPairs<T>*>(head + kPairs * unit);
    const auto b = *reinterpret_cast<const PackedPairs<T>*>(head + R / 2 + kPairs * unit);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      words.words[i] = a.words[i];
      words.words[kHalf + i] = b.words[i];
    }
  }

  __device__ __forceinline__ void store(T* head, int unit, int64_t R, RopeStyle style) const {
    if (style == RopeStyle::kInterleaved) {
      store_packed(head + kVector * unit, words);
      return;
    }
    PackedPairs<T> a;
    PackedPairs<T> b;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      a.words[i] = words.words[i];
      b.words[i] = words.words[kHalf + i];
    }
    *reinterpret_cast<PackedPairs<T>*>(head + kPairs * unit) = a;
    *reinterpret_cast<PackedPairs<T>*>(head + R / 2 + kPairs * unit) = b;
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
  __device__ __forceinline__ void load(const Table* table_row, int unit, int64_t R) {
    load4(table_row + kPairs * unit, c);
    load4(table_row + R / 2 + kPairs * unit, s);
  }

  template <class Term>
  __device__ __forceinline__ void rotate(Pairs& pairs) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      rotate_pair<Term>(pairs.a[i], pairs.b[i], c[i], s[i]);
  }
};

/// Where pair i of a head lies.
__device__ __forceinline__ int64_t first_of_pair(int64_t i, RopeStyle style) {
  return style == RopeStyle::kInterleaved ? 2 * i : i;
}

__device__ __forceinline__ int64_t second_of_pair(int64_t i, int64_t R, RopeStyle style) {
  return style == RopeStyle::kInterleaved ? 2 * i + 1 : R / 2 + i;
}

}  // namespace fathom::cuda
