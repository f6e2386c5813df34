// Rotary position embedding of queries and of the key that all heads share.
#pragma once

#include <array>

#include "fathom/kernels/core/variants.h"

namespace fathom {

/// Which elements of a head form a pair. The two differ by a fixed permutation of the elements, so
/// a checkpoint, its caches and its kernels must agree.
enum class RopeStyle : uint8_t {
  kInterleaved,  ///< pairs (2i, 2i+1): the checkpoints of MLA
  kHalfSplit,    ///< pairs (i, R/2+i), "NeoX": the indexer of V3.2; wrong for MLA as it is shipped
};

/// Rotates each pair of every query head and of the shared key by the angle of its position.
///
///   a' = a c_i - b s_i,   b' = b c_i + a s_i,   (c_i, s_i) = row positions[t] of the table
///
/// q[T,N,R] and k[T,R] are rotated in place and may be strided slices; k may be left out. A row of
/// the table is c_0 .. c_{R/2-1} s_0 .. s_{R/2-1}, in float32. Positions are absolute token
/// indices.
/// Computed in float32, rounded once. Deterministic; pairs are independent.
/// Errors: InvalidArgument if a position lies outside [0, P) or q and k differ in format.
/// Source: Su et al., "RoFormer", eq. 34.
struct RopeInplace {
  static constexpr KernelInfo kInfo{
      .name = "rope_inplace",
      .reference_names = {"apply_rope_with_cos_sin_cache_inplace"},
      .signature = "q[T,N,R]:bf16|f32 k?[T,R]:bf16|f32 positions[T]:i32 table[P,R]:f32 -> q k",
      .limits = "R%2==0",
      .equation = "(a, b) -> (a c - b s, b c + a s)",
      .source = "Su et al. 2021, eq. 34",
  };

  struct Args {
    View q, k, positions, table;
    RopeStyle style = RopeStyle::kInterleaved;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q, &a.k, &a.positions, &a.table};
  }

  static Cost cost(const Args& a);

  /// The table counts with the rows that are read, not as a whole.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

extern const VariantTable<RopeInplace> rope_inplace_cpu;

}  // namespace fathom
