#include <math.h>

#include "fathom/kernels/attn/attention_sink.h"
#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/attn/mla_decode/mla_decode_plan.h"
#include "fathom/kernels/attn/mla_decode/mla_decode_split.h"
#include "fathom/kernels/attn/ragged_attention/attend_avx512.h"

namespace fathom::avx512 {

static_assert(kBlockKeys == MlaDecode::kKeyBlock, "the block size is part of the contract");
static_assert(MlaDecode::kSplitKeys % kBlockKeys == 0, "splits hold whole blocks");

namespace {

/// Keys `first` and on of those that query j of request b sees, before `end` and at most a block.
template <class Element>
void find_block(const MlaDecode::Args& a,
                int64_t b,
                int64_t j,
                int64_t first,
                int64_t end,
                KeyBlock<Element>& out) {
  const int32_t* pages = a.block_table.row<int32_t>(b);
  const int64_t page_size = mla_decode::keys_per_entry(a);
  out.count = end - first < kBlockKeys ? (end < first ? 0 : end - first) : kBlockKeys;
  for (int64_t i = 0; i < out.count; ++i) {
    const int64_t place = mla_decode::key_place(a, b, j, first + i);
    const int64_t slot = pages[place / page_size] * page_size + place % page_size;
    out.at[i] = slot_data<Element>(a.cache, slot);
  }
}

/// Adds keys [begin, end) of those that query j of request b sees to the rows in `s`.
template <class Element>
void attend_keys(const MlaDecode::Args& a,
                 const AttendScratch& s,
                 int64_t b,
                 int64_t j,
                 int64_t count,
                 int64_t begin,
                 int64_t end) {
  KeyBlock<Element> keys;
  find_block(a, b, j, begin, end, keys);
  for (int64_t first = begin; first < end; first += kBlockKeys) {
    KeyBlock<Element> next;
    find_block(a, b, j, first + kBlockKeys, end, next);
    pack_keys(s, keys, next, a.cache.dim(2));
    pack_values(s, keys, a.o.dim(3));
    attend_block(s, count, first, a.scale * a.kv_scale);
    keys = next;
  }
}

/// Query j of request b, head n, to row i: one part or two.
template <class Element>
void load_parts_as(
    const MlaDecode::Args& a, const AttendScratch& s, int64_t i, int64_t b, int64_t j, int64_t n) {
  const auto at = [&](const View& v) {
    return v.row<Element>(b) + j * v.stride(1) + n * v.stride(2);
  };
  load_query(s, i, at(a.q), 0, a.q.dim(3));
  if (a.q_pe.present()) load_query(s, i, at(a.q_pe), a.q.dim(3), a.q_pe.dim(3));
}

void load_parts(
    const MlaDecode::Args& a, const AttendScratch& s, int64_t i, int64_t b, int64_t j, int64_t n) {
  if (a.q.format == Format::kBf16) return load_parts_as<Bf16>(a, s, i, b, j, n);
  load_parts_as<E4m3>(a, s, i, b, j, n);
}

float* lse_at(const MlaDecode::Args& a, int64_t b, int64_t j, int64_t n) {
  return a.lse.row<float>(b) + j * a.lse.stride(1) + n * a.lse.stride(2);
}

/// decode_rows() of rows that see the same keys, or the first ones of those of the last row.
void decode_alike(const MlaDecode::Args& a,
                  const AttendScratch& s,
                  int64_t b,
                  int64_t row,
                  int64_t count,
                  int64_t begin,
                  int64_t end,
                  const PartialRows& out) {
  reset_rows(s, count);
  const int64_t num_heads = a.q.dim(2);
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t j = (row + i) / num_heads;
    const int64_t n = (row + i) % num_heads;
    load_parts(a, s, i, b, j, n);
    const int64_t seen = mla_decode::visible_keys(a, b, j);
    s.seen[i] = static_cast<int32_t>(seen);
    most = seen > most ? seen : most;
  }
  const int64_t last = end < most ? end : most;
  const int64_t j = row / num_heads;
  if (a.cache.format == Format::kBf16) {
    attend_keys<Bf16>(a, s, b, j, count, begin, last);
  } else {
    attend_keys<E4m3>(a, s, b, j, count, begin, last);
  }
  for (int64_t i = 0; i < count; ++i) {
    out.max[i] = s.max[i];
    out.sum[i] = sum_lanes(s.sum + i * kLanes);
    for (int64_t d = 0; d < s.padded_L; d += kLanes) {
      _mm512_store_ps(out.o + i * s.padded_L + d, _mm512_load_ps(s.o + i * s.padded_L + d));
    }
  }
}

}  // namespace

int64_t padded_width(int64_t L) {
  return AttendScratch(0, 0, L).padded_L;
}

int64_t decode_scratch(const MlaDecode::Args& a) {
  return AttendScratch(kMaxDecodeRows, a.cache.dim(2), a.o.dim(3)).bytes();
}

void decode_rows(const MlaDecode::Args& a,
                 int64_t b,
                 int64_t row,
                 int64_t count,
                 int64_t begin,
                 int64_t end,
                 void* scratch,
                 const PartialRows& out) {
  AttendScratch s(kMaxDecodeRows, a.cache.dim(2), a.o.dim(3));
  s.place(scratch);
  if (!a.tree_masks.present()) return decode_alike(a, s, b, row, count, begin, end, out);
  // Tokens of a tree have keys of their own: the heads of one at a time.
  const int64_t num_heads = a.q.dim(2);
  for (int64_t i = 0; i < count;) {
    const int64_t heads = num_heads - (row + i) % num_heads;
    const int64_t part = heads < count - i ? heads : count - i;
    decode_alike(a, s, b, row + i, part, begin, end,
                 {out.o + i * s.padded_L, out.max + i, out.sum + i});
    i += part;
  }
}

void merge_rows(int64_t count, int64_t L, const PartialRows& part, const PartialRows& into) {
  const int64_t width = padded_width(L);
  for (int64_t i = 0; i < count; ++i) {
    const float most = part.max[i] > into.max[i] ? part.max[i] : into.max[i];
    const float reference = most == -__builtin_inff() ? 0.0f : most;
    const __m512 weight_part = exp16(_mm512_set1_ps(part.max[i] - reference));
    const __m512 weight_into = exp16(_mm512_set1_ps(into.max[i] - reference));
    for (int64_t d = i * width; d < (i + 1) * width; d += kLanes) {
      const __m512 added = _mm512_mul_ps(_mm512_load_ps(part.o + d), weight_part);
      const __m512 kept = _mm512_mul_ps(_mm512_load_ps(into.o + d), weight_into);
      _mm512_store_ps(into.o + d, _mm512_add_ps(kept, added));
    }
    const float kept_sum = into.sum[i] * _mm512_cvtss_f32(weight_into);
    into.sum[i] = kept_sum + part.sum[i] * _mm512_cvtss_f32(weight_part);
    into.max[i] = most;
  }
}

void store_rows(
    const MlaDecode::Args& a, int64_t b, int64_t row, int64_t count, const PartialRows& from) {
  const int64_t num_heads = a.q.dim(2);
  const int64_t L = a.o.dim(3);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t j = (row + i) / num_heads;
    const int64_t n = (row + i) % num_heads;
    SinkState end{from.max[i], from.sum[i], 1.0f};
    if (a.sinks.present()) end = add_sink(end.max, end.sum, a.sinks.as<const float>()[n]);
    const float factor = end.sum == 0.0f ? 0.0f : a.kv_scale / end.sum;
    store_row(from.o + i * padded_width(L), factor * (end.shrink * a.o_scale), L,
              a.o.row<Bf16>(b) + j * a.o.stride(1) + n * a.o.stride(2));
    if (!a.lse.present()) continue;
    *lse_at(a, b, j, n) = end.sum == 0.0f ? -__builtin_inff() : end.max + logf(end.sum);
  }
}

}  // namespace fathom::avx512
