#include <algorithm>
#include <cstddef>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention_plan.h"
#include "fathom/kernels/attn/ragged_attention/online_softmax.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {

using nvfp4_attention::kv_head;
using nvfp4_attention::logit_scale;

Cost Nvfp4QkAttention::cost(const Args& a) {
  const int64_t num_requests = a.cu_seqlens.dim(0) - 1;
  double pairs = 0;
  for (int64_t b = 0; b < num_requests; ++b) {
    const int32_t* at = a.cu_seqlens.as<const int32_t>();
    const int64_t tokens = a.cu_seqlens.readable() ? at[b + 1] - at[b] : a.q.dim(0) / num_requests;
    pairs += static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  }
  return {.flops = 2.0 * pairs * static_cast<double>(a.q.dim(1) * (2 * a.q.dim(2) + a.v.dim(2)))};
}

namespace {

// Bytes of one thread's share of the workspace.

int64_t portable_scratch(const Nvfp4QkAttention::Args& a) {
  return align_up<int64_t>((4 * a.q.dim(2) + a.v.dim(2)) * 4, 64);
}

int64_t block_scratch(const Nvfp4QkAttention::Args& a) {
  return align_up<int64_t>(avx512::nvfp4_attention_scratch(a), 64);
}

}  // namespace

int64_t Nvfp4QkAttention::workspace(const Args& a, int num_threads) {
  return num_threads * std::max(portable_scratch(a), block_scratch(a));
}

Status Nvfp4QkAttention::check(const Args& a) {
  if (a.q.dim(1) > 0 && a.k.dim(1) == 0) {
    return invalid_argument(str_cat("k has no heads for the ", a.q.dim(1), " heads of q"));
  }
  if (!a.cu_seqlens.readable()) return {};
  const int32_t* at = a.cu_seqlens.as<const int32_t>();
  const int64_t last = a.cu_seqlens.dim(0) - 1;
  if (at[0] != 0) return invalid_argument(str_cat("cu_seqlens[0] is ", at[0], " but must be 0"));
  for (int64_t b = 0; b < last; ++b) {
    if (at[b] <= at[b + 1]) continue;
    return invalid_argument(
        str_cat("cu_seqlens[", b + 1, "] is ", at[b + 1], " but cu_seqlens[", b, "] is ", at[b]));
  }
  if (at[last] == a.q.dim(0)) return {};
  return invalid_argument(
      str_cat("cu_seqlens[", last, "] is ", at[last], " but there are ", a.q.dim(0), " rows"));
}

namespace {

/// code * block scale of token t and head n of q or k.
void decode_head(const View& codes, const View& scales, int64_t t, int64_t n, float* out) {
  const uint8_t* packed = codes.row<const uint8_t>(t) + n * codes.stride(1);
  const E4m3* scale = scales.row<const E4m3>(t) + n * scales.stride(1);
  for (int64_t d = 0; d < 2 * codes.dim(2); ++d)
    out[d] = to_float(unpack_e2m1(packed, d)) * to_float(scale[d / kNvfp4Block]);
}

/// Query row t of head n, in a request that begins at row `begin`.
template <class O>
void attend_row(
    const Nvfp4QkAttention::Args& a, int64_t begin, int64_t t, int64_t n, float* memory) {
  const int64_t D = 2 * a.q.dim(2);
  const int64_t Dv = a.v.dim(2);
  const int64_t head = kv_head(a, n);
  float* query = memory;
  float* key = query + D;
  float* sums = key + D;
  decode_head(a.q, a.q_scales, t, n, query);
  const SoftmaxState state = attend<Nvfp4QkAttention::kKeyBlock>(
      query, D, Dv, 0, t - begin + 1, logit_scale(a, n),
      [&](int64_t j) -> const float* {
        decode_head(a.k, a.k_scales, begin + j, head, key);
        return key;
      },
      [&](int64_t j) { return a.v.row<const Bf16>(begin + j) + head * a.v.stride(1); }, sums);
  O* o = a.o.row<O>(t) + n * a.o.stride(1);
  for (int64_t d = 0; d < Dv; ++d)
    o[d] = from_float<O>(sums[d] * state.inverse_sum());
  if (a.lse.present()) a.lse.row<float>(t)[n] = state.lse();
}

/// Rows [begin, end) of the T * N rows, heads outermost: their work is balanced, that of tokens
/// not.
template <class O>
void attend_rows(const Nvfp4QkAttention::Args& a, int64_t begin, int64_t end, float* memory) {
  const int32_t* offsets = a.cu_seqlens.as<const int32_t>();
  const int64_t T = a.q.dim(0);
  int64_t b = 0;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t t = row % T;
    if (t == 0) b = 0;
    while (t >= offsets[b + 1])
      ++b;
    attend_row<O>(a, offsets[b], t, row / T, memory);
  }
}

Status attention_portable(Exec& ex, const Nvfp4QkAttention::Args& a) {
  with_activation_type(a.o.format, [&]<class O>(O) {
    for_rows_by_thread(ex, a.q.dim(0) * a.q.dim(1), a.k.dim(0) * 256,
                       [&](int thread_id, int64_t begin, int64_t end) {
                         auto* memory = static_cast<std::byte*>(ex.workspace) +
                                        thread_id * portable_scratch(a);
                         attend_rows<O>(a, begin, end, reinterpret_cast<float*>(memory));
                       });
  });
  return {};
}

/// Blocks of `size` queries over all requests.
int64_t count_blocks(const Nvfp4QkAttention::Args& a, int64_t size) {
  const int32_t* offsets = a.cu_seqlens.as<const int32_t>();
  int64_t blocks = 0;
  for (int64_t b = 0; b + 1 < a.cu_seqlens.dim(0); ++b)
    blocks += ceil_div<int64_t>(offsets[b + 1] - offsets[b], size);
  return blocks;
}

/// Every num_threads-th of the (query block, head) items. Late blocks, which see more keys, come
/// first, and the heads of a block follow each other, so that threads get equal shares.
void attend_blocks(
    const Nvfp4QkAttention::Args& a, int64_t size, int thread_id, int num_threads, void* scratch) {
  const int32_t* offsets = a.cu_seqlens.as<const int32_t>();
  int64_t item = 0;
  for (int64_t b = 0; b + 1 < a.cu_seqlens.dim(0); ++b) {
    const int64_t begin = offsets[b];
    const int64_t tokens = offsets[b + 1] - begin;
    for (int64_t block = ceil_div(tokens, size) - 1; block >= 0; --block) {
      const int64_t first = block * size;
      const int64_t count = std::min(size, tokens - first);
      for (int64_t n = 0; n < a.q.dim(1); ++n, ++item) {
        if (item % num_threads != thread_id) continue;
        avx512::nvfp4_attention_block(a, begin, n, begin + first, count, scratch);
      }
    }
  }
}

Status attention_avx512(Exec& ex, const Nvfp4QkAttention::Args& a) {
  int64_t size = avx512::kMaxNvfp4Queries;
  while (size > 16 && count_blocks(a, size) * a.q.dim(1) < 2 * ex.num_threads)
    size /= 2;
  auto* scratch = static_cast<std::byte*>(ex.workspace);
  if (a.q.numel() <= kSerialBytes / 8) {
    attend_blocks(a, size, 0, 1, scratch);
  } else {
    ex.pool->run([&](int thread_id, int num_threads) {
      attend_blocks(a, size, thread_id, num_threads, scratch + thread_id * block_scratch(a));
    });
  }
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<Nvfp4QkAttention> nvfp4_qk_attention_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kTraits, attention_avx512, MathUnit::kBf16},
    {"portable", Isa::kPortable, "", kTraits, attention_portable},
};

}  // namespace fathom
