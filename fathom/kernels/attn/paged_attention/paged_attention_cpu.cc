#include <algorithm>
#include <cstddef>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/attn/paged_attention/paged_attention.h"
#include "fathom/kernels/attn/paged_attention/paged_attention_blocks.h"
#include "fathom/kernels/attn/ragged_attention/online_softmax.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_blocks.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sparse/request_offsets.h"

namespace fathom {
namespace {

using paged_attention::heads_in_group;
using paged_attention::keys_seen;
using paged_attention::queries_of;
using paged_attention::token_at;

/// Tokens of request b in the cache; in a dry run all that its row of the block table has room for.
int64_t keys_of(const PagedAttention::Args& a, int64_t b) {
  if (!a.kv_lens.readable()) return a.block_table.dim(1) * a.k.dim(1);
  return a.kv_lens.as<int32_t>()[b];
}

}  // namespace

Cost PagedAttention::cost(const Args& a) {
  const int64_t num_requests = a.kv_lens.dim(0);
  double pairs = 0;
  for (int64_t b = 0; b < num_requests; ++b) {
    const int64_t queries = a.q_offsets.readable() ? queries_of(a, b) : a.q.dim(0) / num_requests;
    const int64_t keys = keys_of(a, b);
    for (int64_t i = 0; i < queries; ++i)
      pairs += static_cast<double>(visible_keys(i, queries, keys, CausalMask::kCausal, -1).end);
  }
  return {.flops = 2.0 * pairs * static_cast<double>(a.q.dim(1) * (a.q.dim(2) + a.v.dim(3)))};
}

void PagedAttention::bytes(const Args& a, Cost& cost) {
  const int64_t num_requests = a.kv_lens.dim(0);
  int64_t keys = 0;
  int64_t entries = a.q_offsets.numel() + num_requests;
  for (int64_t b = 0; b < num_requests; ++b) {
    keys += keys_of(a, b);
    entries += ceil_div(keys_of(a, b), a.k.dim(1));
  }
  cost.bytes_read = keys * a.k.dim(2) * (a.k.dim(3) + a.v.dim(3)) * element_bytes(a.k.format) +
                    a.q.numel() * element_bytes(a.q.format) + entries * 4;
  cost.bytes_written = a.o.numel() * element_bytes(a.o.format);
}

namespace {

// Bytes of one thread's share of the workspace.

int64_t portable_scratch(const PagedAttention::Args& a) {
  return align_up<int64_t>(a.v.dim(3) * 4, 64);
}

int64_t block_scratch(const PagedAttention::Args& a) {
  return align_up<int64_t>(avx512::paged_attention_scratch(a), 64);
}

}  // namespace

int64_t PagedAttention::workspace(const Args& a, int num_threads) {
  return num_threads * std::max(portable_scratch(a), block_scratch(a));
}

Status PagedAttention::check(const Args& a) {
  FATHOM_TRY(check_same_format("q", a.q, "o", a.o));
  FATHOM_TRY(check_same_format("k", a.k, "v", a.v));
  FATHOM_TRY(check_scale("kv_scale", a.kv_scale, a.k.format));
  if (a.q.dim(1) > 0 && a.k.dim(2) == 0) {
    return invalid_argument(str_cat("k has no heads for the ", a.q.dim(1), " heads of q"));
  }
  if (a.q_offsets.readable()) {
    FATHOM_TRY(check_request_offsets(a.q_offsets, a.q.dim(0)));
    const int64_t last = a.q_offsets.as<int32_t>()[a.kv_lens.dim(0)];
    if (last != a.q.dim(0)) {
      return invalid_argument(str_cat("q_offsets[", a.kv_lens.dim(0), "] is ", last,
                                      " but there are ", a.q.dim(0), " rows of q"));
    }
  }
  return check_block_table(a.kv_lens, a.block_table, a.k.dim(1), a.k.dim(0), "tokens");
}

namespace {

/// Query row t of head n.
template <class A, class C>
void attend_row(const PagedAttention::Args& a, int64_t t, int64_t n, float* sums) {
  const int32_t* offsets = a.q_offsets.as<int32_t>();
  const int64_t b = request_at(offsets, a.kv_lens.dim(0), t);
  const int64_t kv_head = n / heads_in_group(a);
  const int64_t Dv = a.v.dim(3);
  const SoftmaxState state = attend<PagedAttention::kKeyBlock>(
      a.q.row<A>(t) + n * a.q.stride(1), a.q.dim(2), Dv, 0, keys_seen(a, b, t - offsets[b]),
      a.scale * a.kv_scale, [&](int64_t j) { return token_at<C>(a, a.k, b, j, kv_head); },
      [&](int64_t j) { return token_at<C>(a, a.v, b, j, kv_head); }, sums);
  const float factor = state.inverse_sum() * a.kv_scale;
  A* o = a.o.row<A>(t) + n * a.o.stride(1);
  for (int64_t d = 0; d < Dv; ++d)
    o[d] = from_float<A>(sums[d] * factor);
}

/// Heads outermost: their work is balanced, that of tokens not.
Status paged_attention_portable(Exec& ex, const PagedAttention::Args& a) {
  const int64_t T = a.q.dim(0);
  with_activation_type(a.q.format, [&]<class A>(A) {
    with_cache_type(a.k.format, [&]<class C>(C) {
      for_rows_by_thread(ex, T * a.q.dim(1), a.block_table.dim(1) * a.k.dim(1) * 256,
                         [&](int thread_id, int64_t begin, int64_t end) {
                           auto* sums =
                               reinterpret_cast<float*>(static_cast<std::byte*>(ex.workspace) +
                                                        thread_id * portable_scratch(a));
                           for (int64_t row = begin; row < end; ++row)
                             attend_row<A, C>(a, row % T, row / T, sums);
                         });
    });
  });
  return {};
}

/// Blocks of `size` rows over all requests, of one head of keys.
int64_t count_blocks(const PagedAttention::Args& a, int64_t size) {
  int64_t blocks = 0;
  for (int64_t b = 0; b < a.kv_lens.dim(0); ++b)
    blocks += ceil_div(queries_of(a, b) * heads_in_group(a), size);
  return blocks;
}

/// Every num_threads-th of the (block of rows, head of keys) items. Late blocks, which see more
/// keys, come first, and the heads of a block follow each other, so that threads get equal shares.
void attend_blocks(
    const PagedAttention::Args& a, int64_t size, int thread_id, int num_threads, void* scratch) {
  int64_t item = 0;
  for (int64_t b = 0; b < a.kv_lens.dim(0); ++b) {
    const int64_t rows = queries_of(a, b) * heads_in_group(a);
    for (int64_t block = ceil_div(rows, size) - 1; block >= 0; --block) {
      const int64_t first = block * size;
      for (int64_t m = 0; m < a.k.dim(2); ++m, ++item) {
        if (item % num_threads != thread_id) continue;
        avx512::paged_attention_rows(a, b, m, first, std::min(size, rows - first), scratch);
      }
    }
  }
}

Status paged_attention_avx512(Exec& ex, const PagedAttention::Args& a) {
  if (a.o.numel() == 0) return {};
  int64_t size = avx512::kMaxPagedRows;
  while (size > 16 && count_blocks(a, size) * a.k.dim(2) < 2 * ex.num_threads)
    size /= 2;
  auto* scratch = static_cast<std::byte*>(ex.workspace);
  // A few short requests are done before another thread has woken up.
  if (a.o.numel() * a.block_table.dim(1) * a.k.dim(1) <= kSerialBytes) {
    attend_blocks(a, size, 0, 1, scratch);
  } else {
    ex.pool->run([&](int thread_id, int num_threads) {
      attend_blocks(a, size, thread_id, num_threads, scratch + thread_id * block_scratch(a));
    });
  }
  return {};
}

bool holds_bf16(const PagedAttention::Args& a) {
  return a.q.format == Format::kBf16 && a.k.format != Format::kF32;
}

}  // namespace

constinit const VariantTable<PagedAttention> paged_attention_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kDeterministic | kBatchInvariant, paged_attention_avx512,
     MathUnit::kBf16, holds_bf16},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, paged_attention_portable},
};

}  // namespace fathom
