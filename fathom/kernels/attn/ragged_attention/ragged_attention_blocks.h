// What the variants of this group share: the keys that a query sees, and the AVX-512 part.
#pragma once

#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"

namespace fathom {

/// Keys [begin, end) of a request.
struct VisibleKeys {
  int64_t begin;
  int64_t end;
};

/// What query i of `queries` sees of `keys`. Static: files compiled for different instruction sets
/// must not share one copy of code.
static inline VisibleKeys visible_keys(
    int64_t i, int64_t queries, int64_t keys, CausalMask mask, int64_t window_left) {
  const int64_t last = i + (keys - queries);
  const int64_t end = mask == CausalMask::kFull ? keys : (last < -1 ? 0 : last + 1);
  const int64_t begin = window_left < 0 || last < window_left ? 0 : last - window_left;
  return {begin, end};
}

}  // namespace fathom

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
