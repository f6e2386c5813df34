// What the CPU variants of this group share: the rows of a request that meet one head of keys, and
// the AVX-512 part.
#pragma once

#include "fathom/kernels/attn/paged_attention/paged_attention.h"

namespace fathom::paged_attention {

// Static functions: files compiled for different instruction sets must not share one copy of code.

/// Heads of q that share a head of k and v. There is one.
static inline int64_t heads_in_group(const PagedAttention::Args& a) {
  return a.q.dim(1) / a.k.dim(2);
}

static inline int64_t queries_of(const PagedAttention::Args& a, int64_t b) {
  const int32_t* offsets = a.q_offsets.as<int32_t>();
  return offsets[b + 1] - offsets[b];
}

/// Keys that query i of request b sees; 0 if there are none.
static inline int64_t keys_seen(const PagedAttention::Args& a, int64_t b, int64_t i) {
  const int64_t keys = a.kv_lens.as<int32_t>()[b] - queries_of(a, b) + i + 1;
  return keys > 0 ? keys : 0;
}

/// Numbers of token j of request b under one head of k or v.
template <class T>
static inline const T* token_at(
    const PagedAttention::Args& a, const View& v, int64_t b, int64_t j, int64_t kv_head) {
  const int64_t page_size = v.dim(1);
  const int64_t page = a.block_table.row<int32_t>(b)[j / page_size];
  return v.as<const T>() + page * v.stride(0) + j % page_size * v.stride(1) + kv_head * v.stride(2);
}

}  // namespace fathom::paged_attention

namespace fathom::avx512 {

/// Rows that share the packing of a key block. Says nothing about results.
inline constexpr int64_t kMaxPagedRows = 128;

/// Bytes of scratch of one thread.
int64_t paged_attention_scratch(const PagedAttention::Args& a);

/// Rows [first, first + count) of the queries and heads of request b that meet head `kv_head`: row
/// r is query r / group with head kv_head * group + r % group. count <= kMaxPagedRows.
void paged_attention_rows(const PagedAttention::Args& a,
                          int64_t b,
                          int64_t kv_head,
                          int64_t first,
                          int64_t count,
                          void* scratch);

}  // namespace fathom::avx512
