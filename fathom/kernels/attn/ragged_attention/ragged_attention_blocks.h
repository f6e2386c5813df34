// The AVX-512 part of this group.
#pragma once

#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"

namespace fathom::avx512 {

/// Queries that share the packing of a key block. Says nothing about results.
inline constexpr int64_t kMaxQueryBlock = 128;

/// Bytes of scratch of one thread.
int64_t ragged_attention_scratch(const RaggedAttention::Args& a);

/// Query rows [first, first + count) of request b and head n, count <= kMaxQueryBlock.
void ragged_attention_block(const RaggedAttention::Args& a,
                            int64_t b,
                            int64_t n,
                            int64_t first,
                            int64_t count,
                            void* scratch);

}  // namespace fathom::avx512
