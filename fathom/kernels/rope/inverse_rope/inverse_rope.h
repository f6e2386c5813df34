// The rotation back of attention's output, where the values are rotated keys: one row of the cache
// is both, so what comes out of attention is turned by the angle of the query's position.
//
// The last R channels of a head are R/2 adjacent pairs, and (c_i, s_i) is row positions[t] of the
// table of the forward rotation, c_0 .. c_{R/2-1} s_0 .. s_{R/2-1}:
//
//   a' = a c_i + b s_i,   b' = b c_i - a s_i
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Rotates the last R channels of every head back, in place.
///
/// Channels 0 .. D-R-1 are not touched. o may be strided; [T,G,K] of the grouped output product is
/// reshape(o, {T, G, K}) where heads follow each other. Computed in float32, rounded once.
/// Deterministic; pairs are independent. NaN and infinities stay within their pair.
/// (RopeInplace on the last channels would need a table with negated sines.)
/// Errors: InvalidArgument for a position outside [0, P).
/// Source: DeepSeek-V4, inference/model.py (apply_rotary_emb, inverse).
struct InverseRope {
  static constexpr KernelInfo kInfo{
      .name = "inverse_rope",
      .signature = "o[T,H,D]:bf16|f32 positions[T]:i32 table[P,R]:f32 -> o",
      .limits = "R%2==0, R<=D",
      .equation = "(a, b) -> (a c + b s, b c - a s), last R channels",
      .source = "DeepSeek-V4",
      .flops = "3*T*H*R",
      .outside = "the rotation alone: sparse_mla_decode turns what it writes itself",
  };

  struct Args {
    View o, positions, table;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.o, &a.positions, &a.table}; }

  static Cost cost(const Args& a);

  /// What rotates, and the table's rows of these tokens.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);

  /// A row of the table, turned the other way, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

/// Rotates back as InverseRope, and quantises every 128 channels to FP8 with a power of two as
/// their scale, as the grouped output product on FP8 reads them.
///
///   x = [ o_0 .. o_{D-R-1} | rotated back ] of heads g*H/G .. (g+1)*H/G-1, side by side   (K)
///   s = 2^ceil(log2(max(amax, 1e-4) / 448)),  amax = max |x| over 128 channels, NaN left out
///   y = e4m3(x / s)
///
/// y[T,G,K] and s[T,G,K/128] may be strided; s is ue8m0 or f32. No operands overlap. float32 from o
/// to the code: the rotated channels are not rounded in between. e4m3 rounds to nearest even and
/// saturates; NaN stays NaN. Deterministic; groups of 128 are independent.
/// Errors: InvalidArgument for a position outside [0, P).
/// Source: vLLM, fused_inv_rope_fp8_quant; DeepSeek-V4, inference/kernel.py (act_quant).
struct InverseRopeQuant {
  static constexpr KernelInfo kInfo{
      .name = "inverse_rope_quant",
      .signature =
          "o[T,H,D]:bf16|f32 positions[T]:i32 table[P,R]:f32 -> y[T,G,K]:e4m3 s[T,G,B]:ue8m0|f32",
      .limits = "G*K==H*D, K%D==0, B*128==K, D%128==0, R%2==0, R<=D",
      .equation = "y = e4m3(rotated_back(o) / s), s = 2^ceil(log2(amax / 448)) per 128",
      .source = "vLLM; DeepSeek-V4",
      .flops = "T*H*(3*R+3*D)",
      .outside = "the grouped output product of DeepSeek-V4 on FP8",
  };

  struct Args {
    View o, positions, table, y, s;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.o, &a.positions, &a.table, &a.y, &a.s};
  }

  static Cost cost(const Args& a);

  /// Of the table only the rows of these tokens count.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);

  /// A row of the table, turned the other way, and a head, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<InverseRope> inverse_rope_cpu;
extern const VariantTable<InverseRope> inverse_rope_cuda;
extern const VariantTable<InverseRopeQuant> inverse_rope_quant_cpu;
extern const VariantTable<InverseRopeQuant> inverse_rope_quant_cuda;

}  // namespace fathom
