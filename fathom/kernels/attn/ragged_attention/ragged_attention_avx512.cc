#include <math.h>

#include "fathom/kernels/attn/ragged_attention/attend_avx512.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_blocks.h"

namespace fathom::avx512 {

static_assert(kBlockKeys == RaggedAttention::kKeyBlock, "the block size is part of the contract");

namespace {

/// Rows `first` and on of head n, up to `left` of them and a block.
void find_block(const View& v, int64_t n, int64_t first, int64_t left, KeyBlock<Bf16>& out) {
  out.count = left < kBlockKeys ? (left < 0 ? 0 : left) : kBlockKeys;
  for (int64_t j = 0; j < out.count; ++j) {
    out.at[j] = v.row<Bf16>(first + j) + n * v.stride(1);
  }
}

template <class Out>
void store_rows(const RaggedAttention::Args& a,
                const AttendScratch& s,
                int64_t n,
                int64_t first,
                int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float sum = sum_lanes(s.sum + i * kLanes);
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    Out* o = a.o.row<Out>(first + i) + n * a.o.stride(1);
    store_row(s.o + i * s.padded_L, factor, a.v.dim(2), o);
    if (!a.lse.present()) continue;
    a.lse.row<float>(first + i)[n] = sum == 0.0f ? -__builtin_inff() : s.max[i] + logf(sum);
  }
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
  const int64_t queries_end = a.q_offsets.as<int32_t>()[b + 1];
  const int64_t first_key = a.kv_offsets.as<int32_t>()[b];
  const int64_t num_keys = a.kv_offsets.as<int32_t>()[b + 1] - first_key;
  const int64_t D = a.q.dim(2);
  AttendScratch s(kMaxQueryBlock, D, a.v.dim(2));
  s.place(scratch);
  reset_rows(s, count);
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    load_query(s, i, a.q.row<Bf16>(first + i) + n * a.q.stride(1), D);
    const int64_t visible =
        a.mask == CausalMask::kFull ? num_keys : num_keys - (queries_end - first - i) + 1;
    s.seen[i] = static_cast<int32_t>(visible < 0 ? 0 : visible);
    most = visible > most ? visible : most;
  }
  KeyBlock<Bf16> keys;
  find_block(a.k, n, first_key, most, keys);
  for (int64_t begin = 0; begin < most; begin += kBlockKeys) {
    KeyBlock<Bf16> next;
    KeyBlock<Bf16> values;
    find_block(a.k, n, first_key + begin + kBlockKeys, most - begin - kBlockKeys, next);
    find_block(a.v, n, first_key + begin, most - begin, values);
    pack_keys(s, keys, next, D);
    pack_values(s, values, a.v.dim(2));
    attend_block(s, count, begin, a.scale);
    keys = next;
  }
  if (a.o.format == Format::kBf16) return store_rows<Bf16>(a, s, n, first, count);
  store_rows<float>(a, s, n, first, count);
}

}  // namespace fathom::avx512
