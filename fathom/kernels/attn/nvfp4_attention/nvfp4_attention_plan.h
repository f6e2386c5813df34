// What the variants of nvfp4_qk_attention share.
#pragma once

#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention.h"

namespace fathom::nvfp4_attention {

// Static functions: files compiled for different instruction sets must not share one copy of code.

/// The head of k and v that head n of q meets.
static inline int64_t kv_head(const Nvfp4QkAttention::Args& a, int64_t n) {
  return n / (a.q.dim(1) / a.k.dim(1));
}

/// What a product of code * block scale is multiplied by.
static inline float logit_scale(const Nvfp4QkAttention::Args& a, int64_t n) {
  return a.scale * a.q_global.as<const float>()[n] * a.k_global.as<const float>()[kv_head(a, n)];
}

}  // namespace fathom::nvfp4_attention

namespace fathom::avx512 {

/// Queries that share the decoding and packing of a key block. Says nothing about results.
inline constexpr int64_t kMaxNvfp4Queries = 128;

/// Bytes of scratch of one thread.
int64_t nvfp4_attention_scratch(const Nvfp4QkAttention::Args& a);

/// Query rows [first, first + count) of head n, of a request that begins at row `begin`;
/// count <= kMaxNvfp4Queries.
void nvfp4_attention_block(const Nvfp4QkAttention::Args& a,
                           int64_t begin,
                           int64_t n,
                           int64_t first,
                           int64_t count,
                           void* scratch);

}  // namespace fathom::avx512
