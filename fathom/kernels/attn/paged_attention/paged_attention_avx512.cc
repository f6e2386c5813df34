#include "fathom/kernels/attn/paged_attention/paged_attention_blocks.h"
#include "fathom/kernels/attn/ragged_attention/attend_avx512.h"

namespace fathom::avx512 {

static_assert(kBlockKeys == PagedAttention::kKeyBlock, "the block size is part of the contract");

namespace {

using paged_attention::heads_in_group;
using paged_attention::keys_seen;
using paged_attention::token_at;

/// Tokens `first` and on of request b, before `end` and at most a block.
template <class Element>
void find_block(const PagedAttention::Args& a,
                const View& v,
                int64_t b,
                int64_t kv_head,
                int64_t first,
                int64_t end,
                KeyBlock<Element>& out) {
  out.count = end - first < kBlockKeys ? (end < first ? 0 : end - first) : kBlockKeys;
  for (int64_t j = 0; j < out.count; ++j)
    out.at[j] = token_at<Element>(a, v, b, first + j, kv_head);
}

/// Adds the first `end` keys of request b to the rows in `s`.
template <class Element>
void attend_keys(const PagedAttention::Args& a,
                 const AttendScratch& s,
                 int64_t b,
                 int64_t kv_head,
                 int64_t count,
                 int64_t end) {
  KeyBlock<Element> keys;
  find_block(a, a.k, b, kv_head, 0, end, keys);
  for (int64_t first = 0; first < end; first += kBlockKeys) {
    KeyBlock<Element> next;
    KeyBlock<Element> values;
    find_block(a, a.k, b, kv_head, first + kBlockKeys, end, next);
    find_block(a, a.v, b, kv_head, first, end, values);
    pack_keys(s, keys, next, a.q.dim(2));
    pack_values(s, values, a.v.dim(3));
    attend_block(s, count, first, a.scale * a.kv_scale);
    keys = next;
  }
}

}  // namespace

int64_t paged_attention_scratch(const PagedAttention::Args& a) {
  return AttendScratch(kMaxPagedRows, a.q.dim(2), a.v.dim(3)).bytes();
}

void paged_attention_rows(const PagedAttention::Args& a,
                          int64_t b,
                          int64_t kv_head,
                          int64_t first,
                          int64_t count,
                          void* scratch) {
  AttendScratch s(kMaxPagedRows, a.q.dim(2), a.v.dim(3));
  s.place(scratch);
  reset_rows(s, count);
  const int64_t group = heads_in_group(a);
  const int64_t first_token = a.q_offsets.as<int32_t>()[b];
  const auto head_of = [&](const View& v, int64_t i) {
    const int64_t token = first_token + (first + i) / group;
    return v.row<Bf16>(token) + (kv_head * group + (first + i) % group) * v.stride(1);
  };
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    load_query(s, i, head_of(a.q, i), 0, a.q.dim(2));
    const int64_t seen = keys_seen(a, b, (first + i) / group);
    s.seen[i] = static_cast<int32_t>(seen);
    most = seen > most ? seen : most;
  }
  if (a.k.format == Format::kBf16) {
    attend_keys<Bf16>(a, s, b, kv_head, count, most);
  } else {
    attend_keys<E4m3>(a, s, b, kv_head, count, most);
  }
  for (int64_t i = 0; i < count; ++i) {
    const float sum = sum_lanes(s.sum + i * kLanes);
    const float factor = sum == 0.0f ? 0.0f : a.kv_scale / sum;
    store_row(s.o + i * s.padded_L, factor, a.v.dim(3), head_of(a.o, i));
  }
}

}  // namespace fathom::avx512
