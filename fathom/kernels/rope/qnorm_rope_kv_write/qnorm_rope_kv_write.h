// Preparation of attention in DeepSeek-V4 in one pass: queries are normed and rotated, and the one
// row of a token that is both its key and its value goes to the window cache.
#pragma once

#include <array>

#include "fathom/kernels/attn/cache_row.h"
#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Norms and rotates every query head, and rotates, quantises and stores the row of each token.
///
///   q_out[t,h]     = rope( q[t,h] / sqrt(mean(q[t,h]^2) + eps) )
///   cache[slot(t)] = row( rope( kv[t] ) ),  or with kv_norm
///                    row( rope( kv_norm * kv[t] / sqrt(mean(kv[t]^2) + eps) ) )
///
/// The norm is over all D channels of a head and has no weight for queries. rope turns the last R
/// channels, as adjacent pairs, by the angle of the token's position; a row of the table is
/// c_0 .. c_{R/2-1} s_0 .. s_{R/2-1}. q_out may be the memory of q. The fields of the cache are a
/// row of cache_row.h of D channels: values alone (bf16, f32), or with rope and scales (e4m3, NVFP4
/// as u8). slots[t] = page * S + row, -1 skips the row of that token; two tokens must not share a
/// slot. Without slots that of token t is t. Only those rows are written. All operands may be
/// strided. T and H may be 0.
/// float32 inside, squares summed in 64 partial sums (of a query in 32 where a warp of a GPU has
/// it); one rounding to q_out, and one to the cache (quantised rows: to bf16, then to codes). In
/// f32 with an f32 cache nothing is rounded to less. Deterministic; tokens and heads are
/// independent. Errors: InvalidArgument for positions outside [0, P), slots outside [-1, M*S),
/// unequal formats of q, kv and q_out, fields that are no row of D channels, or an eps that is
/// negative or NaN; without slots, for more tokens than rows. Source: DeepSeek-V4,
/// inference/model.py (Attention.forward); vLLM, fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert.
struct QnormRopeKvWrite {
  static constexpr KernelInfo kInfo{
      .name = "qnorm_rope_kv_write",
      .signature =
          "q[T,H,D]:bf16|f32 kv[T,D]:bf16|f32 kv_norm?[D]:bf16|f32 positions[T]:i32 table[P,R]:f32 "
          "slots?[T]:i64 -> q_out[T,H,D]:bf16|f32 values[M,S,C]:bf16|f32|e4m3|u8 rope?[M,S,R]:bf16 "
          "scales?[M,S,G]:ue8m0|f32|e4m3",
      .limits = "R%2==0, R<=D",
      .equation = "q_out = rope(q / rms(q)); cache[slot] = row(rope(norm(kv)))",
      .source = "DeepSeek-V4; vLLM",
      .flops = "T*(H+1)*(3*D+3*R)",
  };

  struct Args {
    View q, kv, kv_norm = {}, positions, table, slots, q_out, values, rope = {}, scales = {};
    float eps = 1e-6f;

    CacheFields fields() const { return {.values = values, .rope = rope, .scales = scales}; }
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q,     &a.kv,    &a.kv_norm, &a.positions, &a.table,
                      &a.slots, &a.q_out, &a.values,  &a.rope,      &a.scales};
  }

  static Cost cost(const Args& a);

  /// Of table and cache only the rows of these tokens count.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);

  /// A row in float32, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<QnormRopeKvWrite> qnorm_rope_kv_write_cpu;
extern const VariantTable<QnormRopeKvWrite> qnorm_rope_kv_write_cuda;

}  // namespace fathom
