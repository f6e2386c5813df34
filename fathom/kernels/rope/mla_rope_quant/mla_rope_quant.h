// Preparation of a decode step of multi-head latent attention in one pass: rotate, concatenate,
// convert to the format of the cache, write the new key to its page.
#pragma once

#include <array>

#include "fathom/kernels/core/variants.h"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom {

/// Builds the absorbed query and stores the latent key of each token.
///
///   q[t,n]         = convert( [ q_lat[t,n] | rope(q_pe[t,n]) ] / q_scale )
///   cache[slot(t)] = convert( [ c[t]       | rope(k_pe[t])   ] / kv_scale )
///
/// slots[t] = page * S + offset within the page; -1 skips the write of that token. Nothing but
/// those slots of the cache is touched. q and cache are each bf16, f32 or e4m3; the conversion to
/// e4m3 rounds to nearest even and saturates at +-448. A scale is what a stored code is multiplied
/// by to get the value back; only an e4m3 result may have one other than 1. The quant_scale_* of
/// the reference call are the reciprocals. Inputs have one format and may be strided. Two tokens
/// must not share a slot.
/// float32 rotation and scaling, one rounding. Deterministic; tokens and heads are independent.
/// Errors: InvalidArgument for positions outside [0, P), slots outside [-1, M*S), unequal input
/// formats, a scale that is not finite and positive, or a scale with a format that has none.
/// Source: DeepSeek-V2 technical report, section 2.1.3; FlashInfer's mla_rope_quantize_fp8.
struct MlaRopeWrite {
  static constexpr KernelInfo kInfo{
      .name = "mla_rope_quant_fp8",
      .reference_names = {"mla_rope_quantize_fp8"},
      .signature =
          "q_lat[T,N,L]:bf16|f32 q_pe[T,N,R]:bf16|f32 c[T,L]:bf16|f32 k_pe[T,R]:bf16|f32 "
          "positions[T]:i32 table[P,R]:f32 slots[T]:i64 "
          "-> q[T,N,D]:bf16|f32|e4m3 cache[M,S,D]:bf16|f32|e4m3",
      .limits = "D==L+R, R%2==0",
      .equation = "q = [q_lat | rope(q_pe)] / q_scale; cache[slot] = [c | rope(k_pe)] / kv_scale",
      .source = "DeepSeek-V2 report, 2.1.3; FlashInfer",
  };

  struct Args {
    View q_lat, q_pe, c, k_pe, positions, table, slots, q, cache;
    float q_scale = 1.0f;
    float kv_scale = 1.0f;
    RopeStyle style = RopeStyle::kInterleaved;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q_lat, &a.q_pe,  &a.c, &a.k_pe, &a.positions,
                      &a.table, &a.slots, &a.q, &a.cache};
  }

  static Cost cost(const Args& a);

  /// Of table and cache only the rows of these tokens count.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

extern const VariantTable<MlaRopeWrite> mla_rope_quant_fp8_cpu;

}  // namespace fathom
