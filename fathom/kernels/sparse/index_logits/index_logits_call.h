// One form for both contracts: which tokens share keys, where key j lies, and which keys a token
// sees. Functions are static, so that files compiled for different instruction sets never share one
// copy of their code.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fathom/kernels/attn/tree_keys.h"
#include "fathom/kernels/sparse/index_logits/index_logits.h"
#include "fathom/kernels/sparse/index_row.h"

namespace fathom {

/// A call of either contract. A contiguous tensor of keys is one page.
struct IndexLogitsCall {
  View q, q_scales, w, keys, key_scales, logits;
  int64_t heads = 0;
  int64_t width = 0;                   ///< D
  int64_t num_tokens = 0;              ///< T
  int64_t columns = 0;                 ///< L
  int64_t page_size = 0;               ///< S, or all keys
  const View* block_table = nullptr;   ///< null: one page
  const int32_t* q_offsets = nullptr;  ///< null: all tokens belong to request 0
  int64_t num_requests = 1;
  const int32_t* starts = nullptr;  ///< null: 0
  const int32_t* ends = nullptr;
  const int64_t* tree_masks = nullptr;  ///< null: keys lie in the order of their numbers
};

/// [L,E] as one page [1,L,E].
[[maybe_unused]] static View as_one_page(View v) {
  if (!v.present()) return v;
  v.dims = {1, v.dim(0), v.dim(1)};
  v.strides = {0, v.stride(0), v.stride(1)};
  v.rank = 3;
  return v;
}

[[maybe_unused]] static IndexLogitsCall call_of(const IndexLogitsPaged::Args& a) {
  return {.q = a.q,
          .q_scales = a.q_scales,
          .w = a.w,
          .keys = a.keys,
          .key_scales = a.key_scales,
          .logits = a.logits,
          .heads = a.q.dim(1),
          .width = index_width(a.q.format, a.q.dim(2)),
          .num_tokens = a.q.dim(0),
          .columns = a.logits.dim(1),
          .page_size = a.keys.dim(1),
          .block_table = &a.block_table,
          .q_offsets = a.q_offsets.as<const int32_t>(),
          .num_requests = a.block_table.dim(0),
          .ends = a.lengths.as<const int32_t>(),
          .tree_masks = a.tree_masks.as<const int64_t>()};
}

[[maybe_unused]] static IndexLogitsCall call_of(const IndexLogitsRagged::Args& a) {
  return {.q = a.q,
          .q_scales = a.q_scales,
          .w = a.w,
          .keys = as_one_page(a.keys),
          .key_scales = as_one_page(a.key_scales),
          .logits = a.logits,
          .heads = a.q.dim(1),
          .width = index_width(a.q.format, a.q.dim(2)),
          .num_tokens = a.q.dim(0),
          .columns = a.logits.dim(1),
          .page_size = std::max<int64_t>(a.keys.dim(0), 1),
          .starts = a.starts.as<const int32_t>(),
          .ends = a.ends.as<const int32_t>()};
}

/// A row of D values as it is stored.
struct IndexRowIn {
  const void* values = nullptr;
  const void* scales = nullptr;  ///< of e2m1: a ue8m0 for each 32 channels; of e4m3 keys: one f32
};

/// Tokens first_token(b) .. first_token(b+1)-1 belong to request b; those from
/// first_token(num_requests) on to none.
[[maybe_unused]] static int64_t first_token(const IndexLogitsCall& call, int64_t b) {
  if (call.q_offsets != nullptr) return call.q_offsets[b];
  return b == 0 ? 0 : call.num_tokens;
}

/// Keys first_seen(t) .. end_seen(t)-1 are those that token t sees.
[[maybe_unused]] static int64_t first_seen(const IndexLogitsCall& call, int64_t t) {
  return call.starts == nullptr ? 0 : call.starts[t];
}

[[maybe_unused]] static int64_t end_seen(const IndexLogitsCall& call, int64_t t) {
  return std::max<int64_t>(call.ends[t], first_seen(call, t));
}

/// Row [i,j] of an operand of three axes.
[[maybe_unused]] static const void* row_at(const View& v, int64_t i, int64_t j) {
  if (!v.present()) return nullptr;
  return v.as<std::byte>() + (i * v.stride(0) + j * v.stride(1)) * element_bytes(v.format);
}

/// Head h of token t.
[[maybe_unused]] static IndexRowIn query_at(const IndexLogitsCall& call, int64_t t, int64_t h) {
  return {row_at(call.q, t, h), row_at(call.q_scales, t, h)};
}

/// Token t of a call with trees.
[[maybe_unused]] static TreeToken tree_token(const IndexLogitsCall& call, int64_t t) {
  return tree_token_of(call.ends[t], call.tree_masks[t]);
}

/// Key i of token t, of request b.
[[maybe_unused]] static IndexRowIn key_at(const IndexLogitsCall& call,
                                          int64_t b,
                                          int64_t t,
                                          int64_t i) {
  const int64_t j = call.tree_masks == nullptr ? i : place_of_seen(tree_token(call, t), i);
  const int64_t page =
      call.block_table == nullptr ? 0 : call.block_table->row<const int32_t>(b)[j / call.page_size];
  const int64_t offset = j % call.page_size;
  return {row_at(call.keys, page, offset), row_at(call.key_scales, page, offset)};
}

/// s_j: 1 for keys that have no scale of their own.
[[maybe_unused]] static float key_scale(const IndexLogitsCall& call, const IndexRowIn& key) {
  return call.keys.format == Format::kE4m3 ? *static_cast<const float*>(key.scales) : 1.0f;
}

namespace avx512 {

/// Bytes of scratch for each thread, for widths that are a multiple of 64.
int64_t index_logits_bytes(int64_t heads, int64_t width);

/// For widths that are a multiple of 64. In float32, or with products in bf16, which holds the
/// values of every other format.
void index_logits_f32(Exec& ex, const IndexLogitsCall& call);
void index_logits_bf16(Exec& ex, const IndexLogitsCall& call);

}  // namespace avx512

/// On Blackwell, what takes_codes() takes. Compiled where FATHOM_CUDA_ARCHS has 100a, never run.
Status run_index_logits_sm100(Exec& ex, const IndexLogitsCall& call);

}  // namespace fathom
