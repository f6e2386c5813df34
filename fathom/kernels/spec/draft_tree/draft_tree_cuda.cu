// A warp a tree. Its guesses, 64 at most, lie in shared memory, and a lane has two of them: it
// counts those that come before each, all there are, and what is chosen finds its place by the
// votes of the lanes. One H200: 2.2 us for a tree of two a level, most of it a launch (2.5
// predicted), 5.2 us for 64 trees of eight; 1 KB a tree moves.
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/spec/draft_tree/draft_tree.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

struct Nodes {
  int32_t* tokens;
  int32_t* rows;
  float* paths;
  int64_t* masks;

  __device__ void write(
      int64_t at, int32_t token, int64_t parent, float path, uint64_t mask) const {
    tokens[at] = token;
    rows[at] = static_cast<int32_t>(parent);
    paths[at] = path;
    masks[at] = static_cast<int64_t>(mask);
  }
};

__global__ void __launch_bounds__(32) choose_level(const Rows<const int32_t> ids,
                                                   const Rows<const float> logprobs,
                                                   const float* paths,
                                                   const int64_t* masks,
                                                   const int K,
                                                   const Nodes nodes) {
  __shared__ float joint[64];
  let_next_start();
  wait_for_previous();
  const int64_t first = int64_t{blockIdx.x} * K;
  const int lane = lane_id();
  for (int g = lane; g < 64; g += 32) {
    const int64_t t = first + g / K;
    const bool guess = g < K * K && ids[t][g % K] >= 0;
    joint[g] = guess ? __fadd_rn(paths[t], logprobs[t][g % K]) : NAN;
  }
  uint64_t seen = 0;
  for (int k = 0; k < K; ++k)
    seen |= static_cast<uint64_t>(masks[first + k]);
  const int rows = 64 - __clzll(static_cast<long long>(seen));
  const auto own_bit = [&](int j) { return rows + j < 64 ? uint64_t{1} << (rows + j) : 0; };
  __syncwarp();

  bool chosen[2];
  for (int half = 0; half < 2; ++half) {
    const int g = lane + 32 * half;
    const float own = joint[g];
    int before = 0;  // nothing comes before NaN, and NaN before nothing
    for (int other = 0; other < K * K; ++other)
      before += joint[other] > own || (joint[other] == own && other < g) ? 1 : 0;
    chosen[half] = own == own && before < K;
  }
  const uint32_t low = __ballot_sync(0xFFFFFFFFu, chosen[0]);
  const uint32_t high = __ballot_sync(0xFFFFFFFFu, chosen[1]);
  const uint32_t below = (1u << lane) - 1;
  for (int half = 0; half < 2; ++half) {
    if (!chosen[half]) continue;
    const int g = lane + 32 * half;
    const int j = half == 0 ? __popc(low & below) : __popc(low) + __popc(high & below);
    const int64_t t = first + g / K;
    nodes.write(first + j, ids[t][g % K], t, joint[g],
                static_cast<uint64_t>(masks[t]) | own_bit(j));
  }
  if (lane >= __popc(low) + __popc(high) && lane < K) {
    const float nothing = __uint_as_float(0x7FC00000u);  // the NaN that the CPU writes
    nodes.write(first + lane, 0, first, nothing,
                static_cast<uint64_t>(masks[first]) | own_bit(lane));
  }
}

Status draft_level(Exec& ex, const DraftLevel::Args& a) {
  const int64_t K = a.ids.dim(1);
  const Nodes nodes{.tokens = a.tokens.as<int32_t>(),
                    .rows = a.rows.as<int32_t>(),
                    .paths = a.next_paths.as<float>(),
                    .masks = a.next_masks.as<int64_t>()};
  return launch_kernel(ex, choose_level, {.blocks = a.ids.dim(0) / K, .threads = 32},
                       rows_of<const int32_t>(a.ids), rows_of<const float>(a.logprobs),
                       a.paths.as<const float>(), a.masks.as<const int64_t>(), static_cast<int>(K),
                       nodes);
}

}  // namespace

constinit const VariantTable<DraftLevel> draft_level_cuda{
    {"warps", sm(90), "", kDeterministic | kBatchInvariant | kGraphSafe, draft_level},
};

}  // namespace fathom
