// Concatenations around multi-head latent attention: pure copies.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Builds the keys of the expanded (MHA) form: each head's own part, then the shared rotary part.
///
///   k[t,n] = [ k_nope[t,n] | k_pe[t] ]
///
/// Token and head strides are free (k_nope is a slice of the kv_b projection). k overlaps no input.
/// Bit-exact copy: all formats are equal. Errors: InvalidArgument if they are not.
/// Source: DeepSeek-V2 technical report, eq. 16.
struct ConcatK {
  static constexpr KernelInfo kInfo{
      .name = "concat_k",
      .reference_names = {"concat_mla_k", "concat_mla_mha_k"},
      .signature =
          "k_nope[T,N,Dn]:bf16|f32|f16|e4m3 k_pe[T,Dr]:bf16|f32|f16|e4m3 -> "
          "k[T,N,Dq]:bf16|f32|f16|e4m3",
      .limits = "Dq==Dn+Dr",
      .equation = "k[t,n] = [k_nope[t,n] | k_pe[t]]",
      .source = "DeepSeek-V2 report, eq. 16",
      .flops = "0",
  };

  struct Args {
    View k_nope, k_pe, k;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.k_nope, &a.k_pe, &a.k}; }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);
};

/// Builds the query of the absorbed form.
///
///   q[t,n] = [ q_lat[t,n] | q_pe[t,n] ]
///
/// Token and head strides are free (q_lat is often the transposed result of the absorb product).
/// q overlaps no input. Bit-exact copy: all formats are equal. Errors: InvalidArgument if not.
/// Source: DeepSeek-V2 technical report, section 2.1.2 (absorption).
struct ConcatAbsorbedQ {
  static constexpr KernelInfo kInfo{
      .name = "concat_absorbed_q",
      .reference_names = {"concat_mla_absorb_q"},
      .signature =
          "q_lat[T,N,L]:bf16|f32|f16|e4m3 q_pe[T,N,R]:bf16|f32|f16|e4m3 -> "
          "q[T,N,D]:bf16|f32|f16|e4m3",
      .limits = "D==L+R",
      .equation = "q[t,n] = [q_lat[t,n] | q_pe[t,n]]",
      .source = "DeepSeek-V2 report, 2.1.2",
      .flops = "0",
  };

  struct Args {
    View q_lat, q_pe, q;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.q_lat, &a.q_pe, &a.q}; }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);
};

extern const VariantTable<ConcatK> concat_k_cpu;
extern const VariantTable<ConcatK> concat_k_cuda;
extern const VariantTable<ConcatAbsorbedQ> concat_absorbed_q_cpu;
extern const VariantTable<ConcatAbsorbedQ> concat_absorbed_q_cuda;

}  // namespace fathom
