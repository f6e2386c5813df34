#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sample/penalty/penalty.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

constexpr int kThreads = 256;

/// The lists of all rows, one after the other; those of row t end where those of t + 1 begin.
struct Lists {
  const int32_t* tokens;
  const int32_t* counts;
  const int32_t* token_offsets;
  const float* presence;
  const float* frequency;
  const float* repetition;
  const int32_t* bias_tokens;
  const float* bias_values;
  const int32_t* bias_offsets;
};

/// In the order of roundings that the CPU has.
__device__ float penalised(float z, int count, float presence, float frequency, float repetition) {
  z = z > 0.0f ? __fdiv_rn(z, repetition) : __fmul_rn(z, repetition);
  const float often = __fmul_rn(frequency, static_cast<float>(count));
  return __fsub_rn(z, __fadd_rn(often, count > 0 ? presence : 0.0f));
}

/// A block a row, a thread a listed token. The host cannot see lists that lie on the GPU: tokens
/// outside the row are left out. Rows of empty lists are not touched.
__global__ void __launch_bounds__(kThreads)
    penalise_rows(Rows<float> logits, int64_t V, const Lists lists) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  float* z = logits[t];
  const int begin = lists.token_offsets[t];
  const int end = lists.token_offsets[t + 1];
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const int32_t token = lists.tokens[i];
    if (token < 0 || token >= V) continue;
    z[token] = penalised(z[token], lists.counts[i], lists.presence[t], lists.frequency[t],
                         lists.repetition[t]);
  }
  const int first = lists.bias_offsets[t];
  const int last = lists.bias_offsets[t + 1];
  if (first >= last) return;
  __syncthreads();
  // A token may have several biases, as one that is banned does. The thread of the first one adds
  // all of them, in their order.
  for (int i = first + static_cast<int>(threadIdx.x); i < last; i += kThreads) {
    const int32_t token = lists.bias_tokens[i];
    bool is_first = token >= 0 && token < V;
    for (int j = first; j < i && is_first; ++j)
      is_first = lists.bias_tokens[j] != token;
    if (!is_first) continue;
    float sum = z[token];
    for (int j = i; j < last; ++j) {
      if (lists.bias_tokens[j] == token) sum = __fadd_rn(sum, lists.bias_values[j]);
    }
    z[token] = sum;
  }
}

Status penalty(Exec& ex, const Penalty::Args& a) {
  const Lists lists{.tokens = a.tokens.as<const int32_t>(),
                    .counts = a.counts.as<const int32_t>(),
                    .token_offsets = a.token_offsets.as<const int32_t>(),
                    .presence = a.presence.as<const float>(),
                    .frequency = a.frequency.as<const float>(),
                    .repetition = a.repetition.as<const float>(),
                    .bias_tokens = a.bias_tokens.as<const int32_t>(),
                    .bias_values = a.bias_values.as<const float>(),
                    .bias_offsets = a.bias_offsets.as<const int32_t>()};
  const LaunchShape shape{.blocks = a.logits.dim(0), .threads = kThreads};
  return launch_kernel(ex, penalise_rows, shape, rows_of<float>(a.logits), a.logits.dim(1), lists);
}

}  // namespace

constinit const VariantTable<Penalty> penalty_cuda{
    {"rows", sm(90), "", kDeterministic | kBatchInvariant | kGraphSafe, penalty},
};

}  // namespace fathom
