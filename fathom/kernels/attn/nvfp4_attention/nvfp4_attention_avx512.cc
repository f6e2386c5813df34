// The vector form: codes times block scales are exact in bf16, so a block of keys is decoded and
// then met as ragged attention meets keys in bf16 (attend_avx512.h).
#include <math.h>

#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention_plan.h"
#include "fathom/kernels/attn/ragged_attention/attend_avx512.h"
#include "fathom/kernels/attn/sparse_mla/coded_channels_avx512.h"

namespace fathom::avx512 {

static_assert(kBlockKeys == Nvfp4QkAttention::kKeyBlock, "the block size is part of the contract");

namespace {

using nvfp4_attention::kv_head;
using nvfp4_attention::logit_scale;

constexpr int64_t kGroup = 16;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

AttendScratch state_of(const Nvfp4QkAttention::Args& a) {
  return AttendScratch(kMaxNvfp4Queries, 2 * a.q.dim(2), a.v.dim(2));
}

/// Channels of a decoded row, whole vectors of them.
int64_t row_width(const Nvfp4QkAttention::Args& a) {
  return round_up(2 * a.q.dim(2), 32);
}

/// Token t, head n of q or k.
void decode_head(
    const View& codes, const View& scales, int64_t t, int64_t n, float* floats, Bf16* out) {
  widen_scales(scales.row<const E4m3>(t) + n * scales.stride(1), scales.dim(2), floats);
  decode_channels(codes.row<const uint8_t>(t) + n * codes.stride(1), 2 * codes.dim(2), kGroup,
                  floats, out);
}

template <class Out>
void store_rows(const Nvfp4QkAttention::Args& a,
                const AttendScratch& s,
                int64_t n,
                int64_t first,
                int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float sum = sum_lanes(s.sum + i * kLanes);
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    store_row(s.o + i * s.padded_L, factor, a.v.dim(2),
              a.o.row<Out>(first + i) + n * a.o.stride(1));
    if (!a.lse.present()) continue;
    a.lse.row<float>(first + i)[n] = sum == 0.0f ? -__builtin_inff() : s.max[i] + logf(sum);
  }
}

}  // namespace

int64_t nvfp4_attention_scratch(const Nvfp4QkAttention::Args& a) {
  return round_up(state_of(a).bytes(), 64) + kBlockKeys * row_width(a) * 2 +
         round_up(a.q_scales.dim(2), kLanes) * 4;
}

void nvfp4_attention_block(const Nvfp4QkAttention::Args& a,
                           int64_t begin,
                           int64_t n,
                           int64_t first,
                           int64_t count,
                           void* scratch) {
  AttendScratch s = state_of(a);
  s.place(scratch);
  auto* rows = reinterpret_cast<Bf16*>(static_cast<char*>(scratch) + round_up(s.bytes(), 64));
  auto* floats = reinterpret_cast<float*>(rows + kBlockKeys * row_width(a));
  const int64_t D = 2 * a.q.dim(2);
  const int64_t head = kv_head(a, n);
  reset_rows(s, count);
  for (int64_t i = 0; i < count; ++i) {
    decode_head(a.q, a.q_scales, first + i, n, floats, rows);
    load_query(s, i, rows, 0, D);
    s.seen[i] = static_cast<int32_t>(first + i - begin + 1);
  }
  const int64_t most = first + count - begin;
  KeyBlock<Bf16> keys;
  KeyBlock<Bf16> values;
  KeyBlock<Bf16> none;  // rows lie one behind the other: the hardware sees them coming
  for (int64_t key = 0; key < most; key += kBlockKeys) {
    keys.count = values.count = most - key < kBlockKeys ? most - key : kBlockKeys;
    for (int64_t j = 0; j < keys.count; ++j) {
      const int64_t t = begin + key + j;
      decode_head(a.k, a.k_scales, t, head, floats, rows + j * row_width(a));
      keys.at[j] = rows + j * row_width(a);
      values.at[j] = a.v.row<const Bf16>(t) + head * a.v.stride(1);
    }
    pack_keys(s, keys, none, D);
    pack_values(s, values, a.v.dim(2));
    attend_block(s, count, key, logit_scale(a, n));
  }
  if (a.o.format == Format::kBf16) return store_rows<Bf16>(a, s, n, first, count);
  store_rows<float>(a, s, n, first, count);
}

}  // namespace fathom::avx512
