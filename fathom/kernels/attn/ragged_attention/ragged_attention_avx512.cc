#include <math.h>

#include "fathom/kernels/attn/attention_sink.h"
#include "fathom/kernels/attn/ragged_attention/attend_avx512.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_blocks.h"

namespace fathom::avx512 {

static_assert(kBlockKeys == RaggedAttention::kKeyBlock, "the block size is part of the contract");

namespace {

/// Rows `first` and on of head n, up to `left` of them and a block.
template <class Element>
void find_block(const View& v, int64_t n, int64_t first, int64_t left, KeyBlock<Element>& out) {
  out.count = left < kBlockKeys ? (left < 0 ? 0 : left) : kBlockKeys;
  for (int64_t j = 0; j < out.count; ++j) {
    out.at[j] = v.row<Element>(first + j) + n * v.stride(1);
  }
}

template <class Out>
void store_rows(const RaggedAttention::Args& a,
                const AttendScratch& s,
                int64_t n,
                int64_t first,
                int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    SinkState end{s.max[i], sum_lanes(s.sum + i * kLanes), 1.0f};
    if (a.sinks.present()) end = add_sink(end.max, end.sum, a.sinks.as<const float>()[n]);
    const float factor = end.sum == 0.0f ? 0.0f : 1.0f / end.sum;
    Out* o = a.o.row<Out>(first + i) + n * a.o.stride(1);
    store_row(s.o + i * s.padded_L, factor * (end.shrink * a.o_scale), a.v.dim(2), o);
    if (!a.lse.present()) continue;
    float lse = end.sum == 0.0f ? -__builtin_inff() : end.max + logf(end.sum);
    if (a.lse_base == LseBase::k2) lse *= kLog2E;
    a.lse.row<float>(first + i)[n] = lse;
  }
}

/// The rows of a block over their keys: [least, most) of the request's, whose first is row
/// first_key.
template <class Element>
void attend_keys(const RaggedAttention::Args& a,
                 const AttendScratch& s,
                 int64_t n,
                 int64_t count,
                 int64_t first_key,
                 int64_t least,
                 int64_t most) {
  KeyBlock<Element> keys;
  int64_t begin = least / kBlockKeys * kBlockKeys;
  find_block(a.k, n, first_key + begin, most - begin, keys);
  for (; begin < most; begin += kBlockKeys) {
    KeyBlock<Element> next;
    KeyBlock<Element> values;
    find_block(a.k, n, first_key + begin + kBlockKeys, most - begin - kBlockKeys, next);
    find_block(a.v, n, first_key + begin, most - begin, values);
    pack_keys(s, keys, next, a.q.dim(2));
    pack_values(s, values, a.v.dim(2));
    attend_block(s, count, begin, a.scale);
    keys = next;
  }
}

template <class Element>
void attend_rows(const RaggedAttention::Args& a,
                 const AttendScratch& s,
                 int64_t b,
                 int64_t n,
                 int64_t first,
                 int64_t count) {
  const int64_t first_query = a.q_offsets.as<int32_t>()[b];
  const int64_t queries = a.q_offsets.as<int32_t>()[b + 1] - first_query;
  const int64_t first_key = a.kv_offsets.as<int32_t>()[b];
  const int64_t keys = a.kv_offsets.as<int32_t>()[b + 1] - first_key;
  int64_t least = keys;
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    load_query(s, i, a.q.row<Element>(first + i) + n * a.q.stride(1), 0, a.q.dim(2));
    const VisibleKeys seen =
        visible_keys(first + i - first_query, queries, keys, a.mask, a.window_left);
    s.hidden[i] = static_cast<int32_t>(seen.begin);
    s.seen[i] = static_cast<int32_t>(seen.end);
    least = seen.begin < least ? seen.begin : least;
    most = seen.end > most ? seen.end : most;
  }
  attend_keys<Element>(a, s, n / (a.q.dim(1) / a.k.dim(1)), count, first_key, least, most);
}

}  // namespace

int64_t ragged_attention_scratch(const RaggedAttention::Args& a) {
  return AttendScratch(kMaxQueryBlock, a.q.dim(2), a.v.dim(2)).bytes();
}

void ragged_attention_block(const RaggedAttention::Args& a,
                            int64_t b,
                            int64_t n,
                            int64_t first,
                            int64_t count,
                            void* scratch) {
  AttendScratch s(kMaxQueryBlock, a.q.dim(2), a.v.dim(2));
  s.place(scratch);
  reset_rows(s, count);
  if (a.q.format == Format::kBf16) {
    attend_rows<Bf16>(a, s, b, n, first, count);
  } else {
    attend_rows<E4m3>(a, s, b, n, first, count);
  }
  if (a.o.format == Format::kBf16) return store_rows<Bf16>(a, s, n, first, count);
  store_rows<float>(a, s, n, first, count);
}

}  // namespace fathom::avx512
