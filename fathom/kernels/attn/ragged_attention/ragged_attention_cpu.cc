#include <algorithm>
#include <cstddef>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/attention_sink.h"
#include "fathom/kernels/attn/ragged_attention/online_softmax.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_blocks.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {

namespace {

/// Pairs of query and key that mask and window admit, for one request.
double visible_pairs(int64_t queries, int64_t keys, CausalMask mask, int64_t window_left) {
  if (window_left >= 0) {
    double pairs = 0;
    for (int64_t i = 0; i < queries; ++i) {
      const VisibleKeys seen = visible_keys(i, queries, keys, mask, window_left);
      pairs += static_cast<double>(std::max<int64_t>(0, seen.end - seen.begin));
    }
    return pairs;
  }
  if (mask == CausalMask::kFull) return static_cast<double>(queries) * static_cast<double>(keys);
  // Query i of the last min(queries, keys) sees keys - queries + i + 1 keys.
  const auto rows = static_cast<double>(queries < keys ? queries : keys);
  const auto most = static_cast<double>(keys);
  return rows * (most - (rows - 1) / 2);
}

Status check_offsets(std::string_view name, const View& offsets, int64_t rows) {
  if (!offsets.readable()) return {};
  const int32_t* at = offsets.as<int32_t>();
  const int64_t last = offsets.dim(0) - 1;
  if (at[0] != 0) return invalid_argument(str_cat(name, "[0] is ", at[0], " but must be 0"));
  for (int64_t b = 0; b < last; ++b) {
    if (at[b] <= at[b + 1]) continue;
    return invalid_argument(str_cat(name, "[", b + 1, "] is ", at[b + 1], " but ", name, "[", b,
                                    "] is ", at[b], "; offsets must not fall"));
  }
  if (at[last] == rows) return {};
  return invalid_argument(
      str_cat(name, "[", last, "] is ", at[last], " but there are ", rows, " rows"));
}

}  // namespace

Cost RaggedAttention::cost(const Args& a) {
  const int64_t num_requests = a.q_offsets.dim(0) - 1;
  double pairs = 0;
  if (!a.q_offsets.readable() || !a.kv_offsets.readable()) {
    if (num_requests > 0) {
      pairs = static_cast<double>(num_requests) * visible_pairs(a.q.dim(0) / num_requests,
                                                                a.k.dim(0) / num_requests, a.mask,
                                                                a.window_left);
    }
  } else {
    const int32_t* q = a.q_offsets.as<int32_t>();
    const int32_t* kv = a.kv_offsets.as<int32_t>();
    for (int64_t b = 0; b < num_requests; ++b) {
      pairs += visible_pairs(q[b + 1] - q[b], kv[b + 1] - kv[b], a.mask, a.window_left);
    }
  }
  return {.flops = 2.0 * pairs * static_cast<double>(a.q.dim(1) * (a.q.dim(2) + a.v.dim(2)))};
}

namespace {

// Bytes of one thread's share of the workspace.

int64_t portable_scratch(const RaggedAttention::Args& a) {
  return align_up<int64_t>(a.v.dim(2) * 4, 64);
}

int64_t block_scratch(const RaggedAttention::Args& a) {
  return align_up<int64_t>(avx512::ragged_attention_scratch(a), 64);
}

}  // namespace

int64_t RaggedAttention::workspace(const Args& a, int num_threads) {
  return num_threads * std::max(portable_scratch(a), block_scratch(a));
}

Status RaggedAttention::check(const Args& a) {
  FATHOM_TRY(check_same_format("q", a.q, "k", a.k));
  FATHOM_TRY(check_same_format("q", a.q, "v", a.v));
  if (a.q.dim(1) > 0 && a.k.dim(1) == 0) {
    return invalid_argument(str_cat("k has no heads for the ", a.q.dim(1), " heads of q"));
  }
  FATHOM_TRY(check_offsets("q_offsets", a.q_offsets, a.q.dim(0)));
  return check_offsets("kv_offsets", a.kv_offsets, a.k.dim(0));
}

namespace {

float log_sum_exp(const SoftmaxState& state, LseBase base) {
  return base == LseBase::kE ? state.lse() : state.lse() * kLog2E;
}

/// Query row t of head n, whose request has keys from row first_key on.
template <class A, class O>
void attend_row(const RaggedAttention::Args& a,
                int64_t t,
                int64_t n,
                int64_t first_key,
                const VisibleKeys& seen,
                float* sums) {
  const int64_t Dv = a.v.dim(2);
  const int64_t kv_head = n / (a.q.dim(1) / a.k.dim(1));
  const A* k = a.k.row<A>(first_key) + kv_head * a.k.stride(1);
  const A* v = a.v.row<A>(first_key) + kv_head * a.v.stride(1);
  SoftmaxState state = attend<RaggedAttention::kKeyBlock>(
      a.q.row<A>(t) + n * a.q.stride(1), a.q.dim(2), Dv, seen.begin, seen.end, a.scale,
      [&](int64_t j) { return k + j * a.k.stride(0); },
      [&](int64_t j) { return v + j * a.v.stride(0); }, sums);
  float shrink = 1.0f;
  if (a.sinks.present()) {
    const SinkState with = add_sink(state.max, state.sum, a.sinks.as<const float>()[n]);
    state = {with.max, with.sum};
    shrink = with.shrink;
  }
  const float factor = state.inverse_sum() * (shrink * a.o_scale);
  O* o = a.o.row<O>(t) + n * a.o.stride(1);
  for (int64_t d = 0; d < Dv; ++d)
    o[d] = from_float<O>(sums[d] * factor);
  if (a.lse.present()) a.lse.row<float>(t)[n] = log_sum_exp(state, a.lse_base);
}

/// Rows [begin, end) of the T * N rows, heads outermost: their work is balanced, that of tokens
/// not.
template <class A, class O>
void attend_rows(const RaggedAttention::Args& a, int64_t begin, int64_t end, float* sums) {
  const int32_t* q_offsets = a.q_offsets.as<int32_t>();
  const int32_t* kv_offsets = a.kv_offsets.as<int32_t>();
  const int64_t T = a.q.dim(0);
  int64_t b = 0;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t t = row % T;
    if (t == 0) b = 0;
    while (t >= q_offsets[b + 1])
      ++b;
    const VisibleKeys seen = visible_keys(t - q_offsets[b], q_offsets[b + 1] - q_offsets[b],
                                          kv_offsets[b + 1] - kv_offsets[b], a.mask, a.window_left);
    attend_row<A, O>(a, t, row / T, kv_offsets[b], seen, sums);
  }
}

/// Calls f(T{}) with the element type of q, k and v.
template <class F>
void with_input_type(Format format, F&& f) {
  if (format == Format::kE4m3) return f(E4m3{});
  with_float_type(format, f);
}

Status ragged_attention_portable(Exec& ex, const RaggedAttention::Args& a) {
  with_input_type(a.q.format, [&]<class A>(A) {
    with_float_type(a.o.format, [&]<class O>(O) {
      for_rows_by_thread(ex, a.q.dim(0) * a.q.dim(1), a.k.dim(0) * 256,
                         [&](int thread_id, int64_t begin, int64_t end) {
                           auto* scratch = static_cast<std::byte*>(ex.workspace) +
                                           thread_id * portable_scratch(a);
                           attend_rows<A, O>(a, begin, end, reinterpret_cast<float*>(scratch));
                         });
    });
  });
  return {};
}

/// Blocks of `size` queries over all requests.
int64_t count_blocks(const RaggedAttention::Args& a, int64_t size) {
  const int32_t* offsets = a.q_offsets.as<int32_t>();
  int64_t blocks = 0;
  for (int64_t b = 0; b + 1 < a.q_offsets.dim(0); ++b) {
    blocks += ceil_div<int64_t>(offsets[b + 1] - offsets[b], size);
  }
  return blocks;
}

/// Every num_threads-th of the (query block, head) items. Late blocks, which see more keys, come
/// first, and the heads of a block follow each other, so that threads get equal shares.
void attend_blocks(
    const RaggedAttention::Args& a, int64_t size, int thread_id, int num_threads, void* scratch) {
  const int32_t* offsets = a.q_offsets.as<int32_t>();
  int64_t item = 0;
  for (int64_t b = 0; b + 1 < a.q_offsets.dim(0); ++b) {
    const int64_t begin = offsets[b];
    const int64_t queries = offsets[b + 1] - begin;
    for (int64_t block = ceil_div(queries, size) - 1; block >= 0; --block) {
      const int64_t first = block * size;
      const int64_t count = std::min(size, queries - first);
      for (int64_t n = 0; n < a.q.dim(1); ++n, ++item) {
        if (item % num_threads != thread_id) continue;
        avx512::ragged_attention_block(a, b, n, begin + first, count, scratch);
      }
    }
  }
}

Status ragged_attention_avx512(Exec& ex, const RaggedAttention::Args& a) {
  int64_t size = avx512::kMaxQueryBlock;
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

/// The vector variant computes with bf16, which holds e4m3 codes.
bool is_bf16(const RaggedAttention::Args& a) {
  const bool holds = a.q.format == Format::kBf16 || a.q.format == Format::kE4m3;
  return holds && a.o.format != Format::kF16;
}

}  // namespace

constinit const VariantTable<RaggedAttention> ragged_attention_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kDeterministic | kBatchInvariant, ragged_attention_avx512,
     MathUnit::kBf16, is_bf16},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, ragged_attention_portable},
};

}  // namespace fathom
