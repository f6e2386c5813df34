#include "fathom/formats/minifloat.h"
#include "fathom/kernels/attn/attend_row.cuh"
#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention_call.cuh"
#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention_tiles.h"
#include "fathom/kernels/cuda/launch_cuda.h"

namespace fathom {
namespace {

using nvfp4_attention::Call;
using nvfp4_attention::Coded;

/// code * block scale of channel d of head n of q or k.
struct CodedHead {
  const Coded& rows;
  int64_t n;

  __device__ float operator()(int64_t t, int d) const {
    const uint8_t byte = rows.codes_of(t, n)[d / 2];
    const auto code = static_cast<uint8_t>(d % 2 == 0 ? byte & 15u : byte >> 4);
    return to_float(E2m1{code}) * to_float(E4m3{rows.scales_of(t, n)[d / 16]});
  }
};

/// One block a row (t, n) of the result.
__global__ void __launch_bounds__(cuda::kRowThreads)
    attend_rows(const __grid_constant__ Call call) {
  extern __shared__ float row_shared[];
  cuda::let_next_start();
  cuda::wait_for_previous();
  const ragged::Call& c = call.rows;
  const auto block = static_cast<int64_t>(blockIdx.x);
  const int64_t t = block / c.N;
  const int64_t n = block - t * c.N;
  const ragged::Request r = ragged::request_of_query(c, t);
  const auto tid = static_cast<int>(threadIdx.x);
  for (int d = tid; d < c.Dq; d += cuda::kRowThreads)
    row_shared[d] = CodedHead{call.q, n}(t, d);
  __syncthreads();
  const VisibleKeys seen = r.seen(c, t - r.first_query);
  const int64_t kv_head = n / c.group;
  const cuda::RowState state = cuda::attend_row(
      row_shared, c.Dq, c.Dv, seen.begin, seen.end, call.logit_scale(n), CodedHead{call.k, kv_head},
      cuda::Elements{c.v.data, c.v.format}, [&](int64_t i) { return r.first_key + i; },
      [&](int64_t i) { return c.v.offset(r.first_key + i, kv_head); });
  const float factor = state.inverse_sum();
  for (int d = tid; d < c.Dv; d += cuda::kRowThreads)
    cuda::store_any(c.o.data, c.o.format, c.o.offset(t, n) + d, row_shared[c.Dq + d] * factor);
  if (c.lse.data == nullptr || tid != 0) return;
  static_cast<float*>(c.lse.data)[c.lse.offset(t, n)] = state.lse();
}

Status run_rows(Exec& ex, const Nvfp4QkAttention::Args& a) {
  const Call c = nvfp4_attention::call_of(a);
  return launch_kernel(ex, attend_rows,
                       {.blocks = c.rows.T * c.rows.N,
                        .threads = cuda::kRowThreads,
                        .shared_bytes = cuda::attend_row_floats(c.rows.Dq, c.rows.Dv) * 4},
                       c);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<Nvfp4QkAttention> nvfp4_qk_attention_cuda{
#ifdef FATHOM_SM100
    {"tcgen05_never_run", sm(100), "", kTraits, nvfp4_attention::run_tcgen05, MathUnit::kFp4,
     nvfp4_attention::takes_tcgen05},
#endif
    {"wgmma_192", sm(90), "P==96, Dv==128", kTraits, nvfp4_attention::run_tiles_192,
     MathUnit::kBf16, nvfp4_attention::takes_tiles},
    {"wgmma_512", sm(90), "P==256, Dv==512", kTraits, nvfp4_attention::run_tiles_512,
     MathUnit::kBf16, nvfp4_attention::takes_tiles},
    {"rows", sm(90), "P<=8192, Dv<=16384", kTraits, run_rows},
};

}  // namespace fathom
