// A call of attention over codes as the kernels of the GPU see it: that of ragged attention, whose
// queries and keys are the tokens of the same requests, and where codes and their scales lie.
#pragma once

#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_call.cuh"

namespace fathom::nvfp4_attention {

/// Heads of q or k: codes, two a byte, and scales, one for sixteen channels.
struct Coded {
  ragged::HeadRows codes, scales;
  const float* global;

  __device__ const uint8_t* codes_of(int64_t t, int64_t n) const {
    return static_cast<const uint8_t*>(codes.data) + codes.offset(t, n);
  }

  __device__ const uint8_t* scales_of(int64_t t, int64_t n) const {
    return static_cast<const uint8_t*>(scales.data) + scales.offset(t, n);
  }
};

struct Call {
  ragged::Call rows;  ///< its q and k are those below
  Coded q, k;

  /// What a product of code * block scale is multiplied by.
  __device__ float logit_scale(int64_t n) const {
    return rows.scale * q.global[n] * k.global[n / rows.group];
  }
};

inline Call call_of(const Nvfp4QkAttention::Args& a) {
  const auto coded = [](const View& codes, const View& scales, const View& global) {
    return Coded{ragged::head_rows(codes), ragged::head_rows(scales), global.as<const float>()};
  };
  return {.rows = {.q = {},
                   .k = {},
                   .v = ragged::head_rows(a.v),
                   .o = ragged::head_rows(a.o),
                   .lse = ragged::head_rows(a.lse),
                   .q_offsets = a.cu_seqlens.as<const int32_t>(),
                   .kv_offsets = a.cu_seqlens.as<const int32_t>(),
                   .sinks = nullptr,
                   .T = a.q.dim(0),
                   .S = a.k.dim(0),
                   .N = a.q.dim(1),
                   .group = a.k.dim(1) > 0 ? a.q.dim(1) / a.k.dim(1) : 1,
                   .window_left = -1,
                   .B = static_cast<int>(a.cu_seqlens.dim(0) - 1),
                   .Dq = static_cast<int>(2 * a.q.dim(2)),
                   .Dv = static_cast<int>(a.v.dim(2)),
                   .scale = a.scale,
                   .out_scale = 1.0f,
                   .mask = CausalMask::kCausal,
                   .lse_base = LseBase::kE},
          .q = coded(a.q, a.q_scales, a.q_global),
          .k = coded(a.k, a.k_scales, a.k_global)};
}

}  // namespace fathom::nvfp4_attention
