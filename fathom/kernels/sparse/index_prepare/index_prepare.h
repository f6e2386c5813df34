// Queries and keys of the lightning indexer, from their projections to what scores are computed
// from (index_logits.h): rotation, Hadamard transform, quantisation, and for keys the norm before
// and the store into pages behind. sparse/index_row.h has the steps of a row.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/sparse/index_row.h"

namespace fathom {

/// Queries of the indexer, and the weights of their heads.
///
///   x            = rope(q[t,h], positions[t]);   x = D^-0.5 H x where asked for
///   q_out[t,h]   = x, rounded or quantised;      scale s for e4m3
///   w_out[t,h]   = (w[t,h] * weight_scale) * s;  s = 1 unless q_out is e4m3
///
/// q_out has C = D elements a row in bf16, f32 and e4m3 (one power of two s a row, which is in
/// w_out: scores apply relu before the weight, and s > 0). As u8 it has C = D/2 bytes of two e2m1
/// codes, the even channel in the low nibble, and q_scales[T,H,D/32], which stay with the query;
/// q_scales is present in this case alone. weight_scale is D^-0.5 H^-0.5 in both models.
///
/// A row of the table is c_0 .. c_{R/2-1} s_0 .. s_{R/2-1} as in rope.h. DeepSeek-V3.2 rotates the
/// first R channels in half-split pairs, V4 the last R in adjacent ones. float32 inside; rotation
/// and transform round to the format of q, so bf16 has the roundings of the models and f32 none.
/// Operands may be strided in tokens and heads. All variants have the same bits. Deterministic;
/// rows are independent.
/// Errors: InvalidArgument if a position lies outside [0, P), the widths of q_out and q_scales are
/// not those of the format, or the transform meets a width that is no power of two.
/// Source: DeepSeek-V3.2-Exp and DeepSeek-V4, inference/model.py, Indexer.
struct IndexQuery {
  static constexpr KernelInfo kInfo{
      .name = "index_query",
      .signature =
          "q[T,H,D]:bf16|f32 positions[T]:i32|i64 table[P,R]:f32 w[T,H]:bf16|f32 -> "
          "q_out[T,H,C]:bf16|f32|e4m3|u8 q_scales?[T,H,G]:ue8m0 w_out[T,H]:f32",
      .limits = "R%2==0, R<=D, D>=1, D<=1024",
      .equation = "q_out s = D^-0.5 H rope(q); w_out = w * weight_scale * s",
      .source = "DeepSeek-V3.2 and V4, indexer",
      .flops = "~3 T H R for the rotation, log2(D) T H D for the transform, 3 T H D to quantise",
  };

  struct Args {
    View q, positions, table, w, q_out, q_scales{}, w_out;
    RopeStyle style = RopeStyle::kHalfSplit;
    RopeChannels channels = RopeChannels::kFirst;
    IndexTransform transform = IndexTransform::kHadamard;
    float weight_scale = 1.0f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q, &a.positions, &a.table, &a.w, &a.q_out, &a.q_scales, &a.w_out};
  }

  static Cost cost(const Args& a);

  /// Of the table, the rows of these tokens.
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
};

/// Keys of the indexer of DeepSeek-V3.2: one a token, for all heads, stored in pages.
///
///   m = mean(k[t]);  v = mean((k[t] - m)^2)
///   x = (k[t] - m) / sqrt(v + eps) * norm_w + norm_b;   x = rope(x);   x = D^-0.5 H x
///   values[slot(t)] = x, rounded or quantised;   scales[slot(t)] its scale
///
/// slots[t] = page * S + offset, -1 skips the token; two tokens must not share a slot. Only these
/// slots are written. values has C = D elements a row, or D/2 bytes of e2m1 as in IndexQuery.
/// scales is [M,S,1] f32 for e4m3 (value = code * scale, a power of two), [M,S,D/32] ue8m0 for u8,
/// and absent otherwise. Both may be strided in pages and rows, as the fields of a page codec are:
/// a page of P x 128 code bytes and then P x 4 scale bytes is a codec of two planes.
///
/// float32 inside, sums in ascending order of channels; norm, rotation and transform round to the
/// format of k. Deterministic; tokens are independent. NaN or infinity in a key makes all of it
/// NaN. (DeepSeek-V4 has no norm with a bias: its keys come from a compressor, which ends with the
/// same steps from sparse/index_row.h.) Errors: InvalidArgument for slots outside [-1, M*S),
/// positions outside [0, P), unequal formats of norm_w and norm_b, widths that are not those of the
/// format, a transform of a width that is no power of two, or an eps that is not finite and
/// positive. Source: DeepSeek-V3.2-Exp, inference/model.py, Indexer; the page is that of DeepGEMM.
struct IndexKeyWrite {
  static constexpr KernelInfo kInfo{
      .name = "index_key_write",
      .signature =
          "k[T,D]:bf16|f32 norm_w[D]:bf16|f32 norm_b[D]:bf16|f32 positions[T]:i32|i64 "
          "table[P,R]:f32 slots[T]:i64 -> values[M,S,C]:bf16|f32|e4m3|u8 "
          "scales?[M,S,G]:f32|ue8m0",
      .limits = "R%2==0, R<=D, D>=1, D<=1024",
      .equation = "values[slot] s = D^-0.5 H rope(layer_norm(k))",
      .source = "DeepSeek-V3.2, indexer",
      .flops = "~8 T D for the norm, 3 T R for the rotation, log2(D) T D for the transform, 3 T D",
  };

  struct Args {
    View k, norm_w, norm_b, positions, table, slots, values, scales{};
    float eps = 1e-6f;
    RopeStyle style = RopeStyle::kHalfSplit;
    RopeChannels channels = RopeChannels::kFirst;
    IndexTransform transform = IndexTransform::kHadamard;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.k,     &a.norm_w, &a.norm_b, &a.positions,
                      &a.table, &a.slots,  &a.values, &a.scales};
  }

  static Cost cost(const Args& a);

  /// One slot a token.
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
};

extern const VariantTable<IndexQuery> index_query_cpu;
extern const VariantTable<IndexQuery> index_query_cuda;
extern const VariantTable<IndexKeyWrite> index_key_write_cpu;
extern const VariantTable<IndexKeyWrite> index_key_write_cuda;

}  // namespace fathom
