#include <cmath>

#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sample/token_mask/token_mask.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocksPerRow = 8;
constexpr unsigned kAll = 0xFFFFFFFFu;

/// Blocks share a row. A warp takes 32 words, one a lane, and goes through them together: lane l
/// has the logit of bit l, so that stores lie side by side. Rows without a mask leave at once. The
/// host cannot see indices that lie on the GPU; it packs them (runtime/sample).
__global__ void __launch_bounds__(kThreads) mask_rows(Rows<float> logits,
                                                      int64_t V,
                                                      Rows<const uint32_t> masks,
                                                      const int32_t* mask_of_row) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x / kBlocksPerRow;
  const int32_t mask = mask_of_row[t];
  if (mask < 0) return;
  const uint32_t* words = masks[mask];
  float* z = logits[t];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warp =
      static_cast<int64_t>(blockIdx.x % kBlocksPerRow) * kWarps + threadIdx.x / kWarp;
  const int64_t num_words = (V + 31) / 32;
  for (int64_t first = warp * kWarp; first < num_words; first += kBlocksPerRow * kThreads) {
    const uint32_t mine = first + lane < num_words ? words[first + lane] : kAll;
    for (int i = 0; i < kWarp; ++i) {
      const uint32_t word = __shfl_sync(kAll, mine, i);
      const int64_t v = (first + i) * 32 + lane;
      if ((word >> lane & 1) == 0 && v < V) z[v] = -INFINITY;
    }
  }
}

Status apply_token_mask(Exec& ex, const ApplyTokenMask::Args& a) {
  const LaunchShape shape{.blocks = a.logits.dim(0) * kBlocksPerRow, .threads = kThreads};
  return launch_kernel(ex, mask_rows, shape, rows_of<float>(a.logits), a.logits.dim(1),
                       rows_of<const uint32_t>(a.mask), a.mask_of_row.as<const int32_t>());
}

}  // namespace

constinit const VariantTable<ApplyTokenMask> apply_token_mask_cuda{
    {"rows", sm(90), "", kDeterministic | kBatchInvariant | kGraphSafe, apply_token_mask},
};

}  // namespace fathom
