#include "fathom/kernels/attn/attend_row.cuh"
#include "fathom/kernels/attn/paged_attention/paged_attention.h"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom {
namespace {

/// Rows (t, n) of q or o.
struct HeadRows {
  void* data;
  Format format;
  int64_t token_stride;
  int64_t head_stride;

  __device__ int64_t offset(int64_t t, int64_t n) const {
    return t * token_stride + n * head_stride;
  }
};

HeadRows head_rows(const View& v) {
  return {v.data, v.format, v.stride(0), v.stride(1)};
}

/// Pages [P,S,Nk,D] of k or v.
struct PagedHeads {
  const void* data;
  Format format;
  int64_t page_stride;
  int64_t token_stride;
  int64_t head_stride;
};

PagedHeads paged_heads(const View& v) {
  return {v.data, v.format, v.stride(0), v.stride(1), v.stride(2)};
}

struct Call {
  HeadRows q, o;
  PagedHeads k, v;
  const int32_t* q_offsets;
  const int32_t* table;
  const int32_t* kv_lens;
  int64_t table_stride;
  int64_t room;  ///< tokens that a row of the table has room for
  int64_t num_pages;
  int64_t T, N;
  int64_t group;  ///< heads of q that share a head of k
  uint32_t page_size;
  int B, D, Dv;
  float score_scale;  ///< scale and kv_scale
  float out_scale;

  /// The request that owns token t, or -1. Offsets that do not rise own nothing.
  __device__ int request_of(int64_t t) const {
    int least = 0;
    int most = B;  // the answer is the last b with q_offsets[b] <= t
    while (most - least > 1) {
      const int middle = least + (most - least) / 2;
      if (q_offsets[middle] <= t) {
        least = middle;
      } else {
        most = middle;
      }
    }
    return B > 0 && q_offsets[least] <= t && t < q_offsets[least + 1] ? least : -1;
  }

  /// Keys that token t of request b sees. What the host could not check is not followed.
  __device__ int64_t keys_seen(int b, int64_t t) const {
    const int64_t keys = kv_lens[b];
    const int64_t length = keys < 0 ? 0 : (keys < room ? keys : room);
    const int64_t seen = length - q_offsets[b + 1] + t + 1;
    return seen < 0 ? 0 : seen;
  }

  /// First element of token j of request b under a head of k or v, or -1: no such page.
  __device__ int64_t place(const PagedHeads& from, int b, uint32_t j, int64_t kv_head) const {
    const uint32_t entry = j / page_size;
    const int64_t page = table[b * table_stride + entry];
    if (page < 0 || page >= num_pages) return -1;
    return page * from.page_stride + int64_t{j - entry * page_size} * from.token_stride +
           kv_head * from.head_stride;
  }
};

Call call_of(const PagedAttention::Args& a) {
  return {.q = head_rows(a.q),
          .o = head_rows(a.o),
          .k = paged_heads(a.k),
          .v = paged_heads(a.v),
          .q_offsets = a.q_offsets.as<const int32_t>(),
          .table = a.block_table.as<const int32_t>(),
          .kv_lens = a.kv_lens.as<const int32_t>(),
          .table_stride = a.block_table.stride(0),
          .room = a.block_table.dim(1) * a.k.dim(1),
          .num_pages = a.k.dim(0),
          .T = a.q.dim(0),
          .N = a.q.dim(1),
          .group = a.k.dim(2) > 0 ? a.q.dim(1) / a.k.dim(2) : 1,
          .page_size = static_cast<uint32_t>(a.k.dim(1)),
          .B = static_cast<int>(a.kv_lens.dim(0)),
          .D = static_cast<int>(a.q.dim(2)),
          .Dv = static_cast<int>(a.v.dim(3)),
          .score_scale = a.scale * a.kv_scale,
          .out_scale = a.kv_scale};
}

// ---- any formats and widths ----

/// One block a row (t, n) of the result.
__global__ void __launch_bounds__(cuda::kRowThreads) attend_rows(const __grid_constant__ Call c) {
  extern __shared__ float row_shared[];
  cuda::let_next_start();
  cuda::wait_for_previous();
  const auto block = static_cast<int64_t>(blockIdx.x);
  const int64_t t = block / c.N;
  const int64_t n = block - t * c.N;
  const int b = c.request_of(t);
  const auto tid = static_cast<int>(threadIdx.x);
  for (int d = tid; d < c.D; d += cuda::kRowThreads)
    row_shared[d] = cuda::load_any(c.q.data, c.q.format, c.q.offset(t, n) + d);
  __syncthreads();
  const int64_t seen = b < 0 ? 0 : c.keys_seen(b, t);
  const int64_t kv_head = n / c.group;
  const cuda::RowState state = cuda::attend_row(
      row_shared, c.D, c.Dv, 0, seen, c.score_scale, cuda::Elements{c.k.data, c.k.format},
      cuda::Elements{c.v.data, c.v.format},
      [&](int64_t j) { return c.place(c.k, b, static_cast<uint32_t>(j), kv_head); },
      [&](int64_t j) { return c.place(c.v, b, static_cast<uint32_t>(j), kv_head); });
  const float factor = state.inverse_sum() * c.out_scale;
  for (int d = tid; d < c.Dv; d += cuda::kRowThreads)
    cuda::store_any(c.o.data, c.o.format, c.o.offset(t, n) + d, row_shared[c.D + d] * factor);
}

Status run_rows(Exec& ex, const PagedAttention::Args& a) {
  const Call c = call_of(a);
  return launch_kernel(ex, attend_rows,
                       {.blocks = c.T * c.N,
                        .threads = cuda::kRowThreads,
                        .shared_bytes = cuda::attend_row_floats(c.D, c.Dv) * 4},
                       c);
}

/// Tokens of a request are counted in 32 bits.
bool takes_rows(const PagedAttention::Args& a) {
  return a.block_table.dim(1) * a.k.dim(1) < (int64_t{1} << 31);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<PagedAttention> paged_attention_cuda{
    {"rows", sm(90), "D<=16384, Dv<=16384", kTraits, run_rows, MathUnit::kF32, takes_rows},
};

}  // namespace fathom
