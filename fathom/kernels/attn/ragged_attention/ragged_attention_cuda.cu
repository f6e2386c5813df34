#include "fathom/kernels/attn/attend_row.cuh"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_call.cuh"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_tiles.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom {
namespace {

using ragged::Call;
using ragged::Request;

Status run_tiles(Exec& ex, const RaggedAttention::Args& a) {
  const Call c = ragged::call_of(a);
  const int64_t tiles = ragged::most_tiles(c, ragged::kTileQueries);
  return launch_kernel(ex, ragged::attend_tiles,
                       {.blocks = tiles * c.N,
                        .threads = ragged::kBlockThreads,
                        .shared_bytes = ragged::kSharedBytes},
                       c, tiles);
}

bool takes_tiles(const RaggedAttention::Args& a) {
  return a.q.format == Format::kBf16 && a.o.format != Format::kF16 && a.scale > 0.0f &&
         cuda::takes_vectors(a.q) && cuda::takes_vectors(a.k) && cuda::takes_vectors(a.v) &&
         cuda::takes_vectors(a.o);
}

// ---- any formats and widths ----

__global__ void __launch_bounds__(cuda::kRowThreads) attend_rows(const __grid_constant__ Call c) {
  extern __shared__ float row_shared[];
  cuda::let_next_start();
  cuda::wait_for_previous();
  const auto block = static_cast<int64_t>(blockIdx.x);
  const int64_t t = block / c.N;
  const int64_t n = block - t * c.N;
  const Request r = ragged::request_of_query(c, t);
  const auto tid = static_cast<int>(threadIdx.x);
  for (int d = tid; d < c.Dq; d += cuda::kRowThreads)
    row_shared[d] = cuda::load_any(c.q.data, c.q.format, c.q.offset(t, n) + d);
  __syncthreads();
  const VisibleKeys seen = r.seen(c, t - r.first_query);
  const int64_t kv_head = n / c.group;
  cuda::RowState state = cuda::attend_row(
      row_shared, c.Dq, c.Dv, seen.begin, seen.end, c.scale, cuda::Elements{c.k.data, c.k.format},
      cuda::Elements{c.v.data, c.v.format},
      [&](int64_t i) { return c.k.offset(r.first_key + i, kv_head); },
      [&](int64_t i) { return c.v.offset(r.first_key + i, kv_head); });
  const float shrink = c.sinks == nullptr ? 1.0f : state.add_sink(c.sinks[n]);
  const float factor = state.inverse_sum() * shrink * c.out_scale;
  for (int d = tid; d < c.Dv; d += cuda::kRowThreads)
    cuda::store_any(c.o.data, c.o.format, c.o.offset(t, n) + d, row_shared[c.Dq + d] * factor);
  if (c.lse.data == nullptr || tid != 0) return;
  static_cast<float*>(c.lse.data)[c.lse.offset(t, n)] =
      c.lse_base == LseBase::kE ? state.lse() : state.lse() * 1.44269504f;
}

Status run_rows(Exec& ex, const RaggedAttention::Args& a) {
  const Call c = ragged::call_of(a);
  return launch_kernel(ex, attend_rows,
                       {.blocks = c.T * c.N,
                        .threads = cuda::kRowThreads,
                        .shared_bytes = cuda::attend_row_floats(c.Dq, c.Dv) * 4},
                       c);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<RaggedAttention> ragged_attention_cuda{
    {"wgmma", sm(90), "Dq==192, Dv==128", kTraits, run_tiles, MathUnit::kBf16, takes_tiles},
    {"rows", sm(90), "Dq<=16384, Dv<=16384", kTraits, run_rows},
};

}  // namespace fathom
