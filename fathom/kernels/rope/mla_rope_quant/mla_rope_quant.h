// Preparation of a decode step of multi-head latent attention in one pass: rotate and convert to
// FP8, alone or with the concatenation and the write of the new key to its page.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom {

/// Rotates the rotary part of absorbed queries and latent keys, and converts both parts to FP8.
///
///   q_pe_out  = fp8( q_scale  * rope(q_pe) )     q_lat_out = fp8( q_scale  * q_lat )
///   k_pe_out  = fp8( kv_scale * rope(k_pe) )     c_out     = fp8( kv_scale * c )
///
/// All inputs have one format, all outputs one of e4m3 and e5m2. Every operand may be strided, so
/// that outputs can be slices of merged [T,N,L+R] and [T,L+R] buffers. No operands overlap. N and L
/// are any numbers. The scales multiply, as in the reference call; they are the reciprocals of what
/// a stored code is multiplied by to get the value back.
/// float32 rotation and scaling, one rounding to nearest even; what exceeds the largest finite
/// number, infinity included, becomes that number; NaN stays NaN. Deterministic; tokens and heads
/// are independent.
/// Errors: InvalidArgument for positions outside [0, P), unequal formats, or a scale that is not
/// finite and positive.
/// Source: FlashInfer, mla_rope_quantize_fp8; DeepSeek-V2 technical report, section 2.1.3.
struct MlaRopeQuantFp8 {
  static constexpr KernelInfo kInfo{
      .name = "mla_rope_quant_fp8",
      .reference_names = {"mla_rope_quantize_fp8"},
      .signature =
          "q_pe[T,N,R]:bf16|f16|f32 k_pe[T,R]:bf16|f16|f32 q_lat[T,N,L]:bf16|f16|f32 "
          "c[T,L]:bf16|f16|f32 positions[T]:i32|i64 table[P,R]:f32 -> q_pe_out[T,N,R]:e4m3|e5m2 "
          "k_pe_out[T,R]:e4m3|e5m2 q_lat_out[T,N,L]:e4m3|e5m2 c_out[T,L]:e4m3|e5m2",
      .limits = "R%2==0",
      .equation = "fp8(q_scale [rope(q_pe) | q_lat]), fp8(kv_scale [rope(k_pe) | c])",
      .source = "FlashInfer; DeepSeek-V2 report, 2.1.3",
      .flops = "T*(N+1)*(4*R+L)",
      .outside = "rotation into fp8 queries; attention here keeps queries in bf16",
  };

  struct Args {
    View q_pe, k_pe, q_lat, c, positions, table, q_pe_out, k_pe_out, q_lat_out, c_out;
    float q_scale = 1.0f;
    float kv_scale = 1.0f;
    RopeStyle style = RopeStyle::kHalfSplit;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q_pe,  &a.k_pe,     &a.q_lat,    &a.c,         &a.positions,
                      &a.table, &a.q_pe_out, &a.k_pe_out, &a.q_lat_out, &a.c_out};
  }

  static Cost cost(const Args& a);

  /// Of the table only the rows of these tokens count.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

/// Builds the absorbed query and stores the latent key of each token.
///
///   q[t,n]         = convert( [ q_lat[t,n] | rope(q_pe[t,n]) ] / q_scale )
///   cache[slot(t)] = convert( [ c[t]       | rope(k_pe[t])   ] / kv_scale )
///
/// slots[t] = page * S + offset within the page; -1 skips the write of that token. Nothing but
/// those slots of the cache is touched. q and cache are each bf16, f32 or e4m3; the conversion to
/// e4m3 rounds to nearest even and saturates at +-448. A scale is what a stored code is multiplied
/// by to get the value back; only an e4m3 result may have one other than 1. Inputs have one format
/// and may be strided. Two tokens must not share a slot.
/// float32 rotation and scaling, one rounding. Deterministic; tokens and heads are independent.
/// Errors: InvalidArgument for positions outside [0, P), slots outside [-1, M*S), unequal input
/// formats, a scale that is not finite and positive, or a scale with a format that has none.
/// Source: DeepSeek-V2 technical report, section 2.1.3.
struct MlaRopeWrite {
  static constexpr KernelInfo kInfo{
      .name = "mla_rope_write",
      .signature =
          "q_lat[T,N,L]:bf16|f32 q_pe[T,N,R]:bf16|f32 c[T,L]:bf16|f32 k_pe[T,R]:bf16|f32 "
          "positions[T]:i32 table[P,R]:f32 slots[T]:i64 "
          "-> q[T,N,D]:bf16|f32|e4m3 cache[M,S,D]:bf16|f32|e4m3",
      .limits = "D==L+R, R%2==0",
      .equation = "q = [q_lat | rope(q_pe)] / q_scale; cache[slot] = [c | rope(k_pe)] / kv_scale",
      .source = "DeepSeek-V2 report, 2.1.3",
      .flops = "T*(N+1)*(3*R+D)",
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

extern const VariantTable<MlaRopeQuantFp8> mla_rope_quant_fp8_cpu;
extern const VariantTable<MlaRopeQuantFp8> mla_rope_quant_fp8_cuda;
extern const VariantTable<MlaRopeWrite> mla_rope_write_cpu;
extern const VariantTable<MlaRopeWrite> mla_rope_write_cuda;

}  // namespace fathom
