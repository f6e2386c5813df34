// Rotary position embedding of queries and keys.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Which elements of a head form a pair. The two differ by a fixed permutation of the elements, so
/// a checkpoint, its caches and its kernels must agree.
enum class RopeStyle : uint8_t {
  kInterleaved,  ///< pairs (2i, 2i+1): the checkpoints of MLA
  kHalfSplit,    ///< pairs (i, R/2+i), "NeoX": the indexer of V3.2; wrong for MLA as it is shipped
};

/// Rotates the first R elements of every query and key head by the angle of the token's position.
///
///   a' = a c_i - b s_i,   b' = b c_i + a s_i,   (c_i, s_i) = row positions[t] of the table
///
/// q[T,N,D] and k[T,M,D] are rotated in place and may be strided slices; elements R .. D-1 of a
/// head stay as they are; k may be left out. A flattened [T, N*D] is reshape(q, {T, N, D}). N and M
/// are independent. A row of the table is c_0 .. c_{R/2-1} s_0 .. s_{R/2-1}, in float32. Positions
/// are absolute token indices.
///
/// With slots, the call also fills a cache: k_cache[slots[t]] = the rotated k[t] and
/// v_cache[slots[t]] = v[t], a slot of -1 writes nothing, no other slot is touched. k, v, both
/// caches and slots are then all given. Two tokens must not share a slot.
///
/// Computed in float32, rounded once. Deterministic; pairs are independent. NaN and infinities stay
/// within their pair.
/// Errors: InvalidArgument if a position lies outside [0, P), a slot outside [-1, C), formats
/// differ, or only some operands of the cache are given.
/// Source: Su et al., "RoFormer", eq. 34.
struct RopeInplace {
  static constexpr KernelInfo kInfo{
      .name = "rope_inplace",
      .reference_names = {"apply_rope_with_cos_sin_cache_inplace"},
      .signature =
          "q[T,N,D]:bf16|f16|f32 k?[T,M,D]:bf16|f16|f32 positions[T]:i32|i64 "
          "table[P,R]:f32 v?[T,M,D]:bf16|f16|f32 slots?[T]:i64 "
          "k_cache?[C,M,D]:bf16|f16|f32 v_cache?[C,M,D]:bf16|f16|f32 "
          "-> q k k_cache v_cache",
      .limits = "R%2==0, R<=D",
      .equation = "(a, b) -> (a c - b s, b c + a s)",
      .source = "Su et al. 2021, eq. 34",
      .flops = "3*T*(N+M)*R",
  };

  struct Args {
    View q, k, positions, table;
    View v = {}, slots = {}, k_cache = {}, v_cache = {};
    RopeStyle style = RopeStyle::kInterleaved;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q, &a.k, &a.positions, &a.table, &a.v, &a.slots, &a.k_cache, &a.v_cache};
  }

  static Cost cost(const Args& a);

  /// Of the table and of the caches only the rows of these tokens count, of heads only what
  /// rotates.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

/// The rotation of RopeInplace as a model in half precision computes it: the table has the format
/// of q, and a c, b s and their difference are each rounded to it (b c, a s and their sum alike).
///
/// q[T,N,D] and k[T,M,D] in place, k may be left out. The positions [B,S] and heads [B,S,N*D] of
/// the reference are reshaped to T = B*S rows. For f32 the result is that of RopeInplace.
/// Deterministic; pairs are independent. NaN and infinities stay within their pair.
/// Errors: InvalidArgument if a position lies outside [0, P) or the formats of q, k, table differ.
/// Source: Su et al., "RoFormer", eq. 34; the rotary_embedding kernel of sgl-kernel for its
/// roundings.
struct Rope {
  static constexpr KernelInfo kInfo{
      .name = "rope",
      .reference_names = {"rotary_embedding"},
      .signature =
          "q[T,N,D]:bf16|f16|f32 k?[T,M,D]:bf16|f16|f32 positions[T]:i32|i64 "
          "table[P,R]:bf16|f16|f32 -> q k",
      .limits = "R%2==0, R<=D",
      .equation = "(a, b) -> (a c - b s, b c + a s), each term rounded",
      .source = "Su et al. 2021, eq. 34",
      .flops = "3*T*(N+M)*R",
      .outside = "rotation out of place; the layers rotate in place or in the fused preparation",
  };

  struct Args {
    View q, k, positions, table;
    RopeStyle style = RopeStyle::kHalfSplit;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q, &a.k, &a.positions, &a.table};
  }

  static Cost cost(const Args& a);

  /// As RopeInplace.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

extern const VariantTable<RopeInplace> rope_inplace_cpu;
extern const VariantTable<RopeInplace> rope_inplace_cuda;
extern const VariantTable<Rope> rope_cpu;
extern const VariantTable<Rope> rope_cuda;

}  // namespace fathom
