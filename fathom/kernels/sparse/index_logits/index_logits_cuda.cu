#include "fathom/base/checked_math.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sparse/index_logits/index_logits.h"
#include "fathom/kernels/sparse/index_logits/index_logits_call.h"
#include "fathom/kernels/sparse/index_logits/index_logits_ring.cuh"
#include "fathom/kernels/sparse/index_logits/index_logits_tiles.cuh"

namespace fathom {
namespace {

using namespace index_logits;  // the parts of this kernel

// ---- codes on the tensor cores ----

template <class AnyCuts, class Kernel, class... Map>
Status launch_cuts(Exec& ex,
                   const IndexLogitsCall& call,
                   const AnyCuts& cuts,
                   Kernel kernel,
                   int64_t shared_bytes,
                   const Map&... map) {
  return launch_kernel(ex, kernel,
                       {.blocks = num_blocks(call, cuts, kTileKeys),
                        .threads = kThreads,
                        .shared_bytes = shared_bytes},
                       device_call(call), cuts, map...);
}

template <class F>
Status launch_form(Exec& ex, const IndexLogitsCall& call, const Cuts& cuts) {
  return launch_cuts(ex, call, cuts, score_codes<F>,
                     cuts.queries * int64_t{QueryMemory::kBytes} + kAtom);
}

template <class Rows>
Status launch_codes(Exec& ex, const IndexLogitsCall& call) {
  if (call.num_tokens == 0 || call.columns == 0) return {};
  const Cuts cuts = cuts_of(call, *ex.device, kTileKeys, kMostQueries);
  if (call.tree_masks != nullptr) return launch_form<Form<Rows, false, true, true>>(ex, call, cuts);
  const bool whole_pages = call.block_table == nullptr || call.page_size % kWarpKeys == 0;
  const auto launch = [&]<bool kWholePages>() {
    return cuts.queries == 1 ? launch_form<Form<Rows, kWholePages, true>>(ex, call, cuts)
                             : launch_form<Form<Rows, kWholePages, false>>(ex, call, cuts);
  };
  return whole_pages ? launch.template operator()<true>() : launch.template operator()<false>();
}

template <class Args>
Status run_codes(Exec& ex, const Args& a) {
  const IndexLogitsCall call = call_of(a);
  return call.keys.format == Format::kU8 ? launch_codes<E2m1Rows>(ex, call)
                                         : launch_codes<E4m3Rows>(ex, call);
}

// ---- the same, tiles brought by the copy engine ----

template <class Rows>
Status launch_ring(Exec& ex, const IndexLogitsCall& call) {
  if (call.num_tokens == 0 || call.columns == 0) return {};
  const View& keys = call.keys;
  const int64_t bytes = element_bytes(keys.format);
  CUtensorMap map{};
  FATHOM_TRY(cuda::make_tensor_map({.data = keys.data,
                                    .dims = {int64_t{kRowBytes<Rows>}, keys.dim(1), keys.dim(0)},
                                    .strides = {keys.stride(1) * bytes, keys.stride(0) * bytes},
                                    .box = {static_cast<int>(kRowBytes<Rows>), kTileKeys}},
                                   &map));
  const RingCuts cuts{cuts_of(call, *ex.device, kTileKeys, 1), stages_of<Rows>()};
  return launch_cuts(ex, call, cuts, score_ring<Rows>,
                     kFixedBytes + int64_t{cuts.stages} * kStageBytes<Rows>, map);
}

Status run_ring(Exec& ex, const IndexLogitsPaged::Args& a) {
  const IndexLogitsCall call = call_of(a);
  return call.keys.format == Format::kU8 ? launch_ring<E2m1Rows>(ex, call)
                                         : launch_ring<E4m3Rows>(ex, call);
}

/// Every tile is a box of one page; tokens of trees have keys of their own.
bool takes_ring(const IndexLogitsPaged::Args& a) {
  return takes_codes(a) && !a.tree_masks.present() && a.keys.dim(0) > 0 &&
         a.keys.dim(1) % kTileKeys == 0;
}

/// Where it was faster on an H200 (SPARSE_CUDA_NOTES.md): blocks of one token, of one tile each or
/// of many rounds of blocks. Others, whose blocks have a few tiles, begin sooner without a ring.
bool suits_ring(const IndexLogitsPaged::Args& a, const DeviceInfo& gpu) {
  constexpr int64_t kManyTiles = 24;
  const IndexLogitsCall call = call_of(a);
  const int64_t tiles = call.num_tokens * ceil_div<int64_t>(call.columns, kTileKeys);
  const int64_t at_once = int64_t{gpu.num_sms} * kBlocksOfSm;
  return call.num_tokens <= call.num_requests &&
         (tiles <= at_once || tiles >= kManyTiles * at_once);
}

// ---- on Blackwell ----

template <class Args>
Status run_tcgen05(Exec& ex, const Args& a) {
  return run_index_logits_sm100(ex, call_of(a));
}

// ---- any formats and widths ----

constexpr int kKeysOfBlock = 128;  // a thread each
constexpr int kHeadsAtOnce = 16;
constexpr int kChannelsAtOnce = 32;

/// Channel d of a row as it counts in a product.
__device__ __forceinline__ float channel_of(Format format,
                                            const std::byte* row,
                                            const std::byte* scales,
                                            int d) {
  if (format != Format::kU8) return cuda::load_any(row, format, d);
  const auto byte = static_cast<uint32_t>(row[d / 2]);
  const E2m1 code{static_cast<uint8_t>(d % 2 == 0 ? byte & 15u : byte >> 4)};
  const Ue8m0 scale{static_cast<uint8_t>(scales[d / static_cast<int>(kIndexScaleGroup)])};
  return to_float(code) * to_float(scale);
}

/// A block has 128 keys of a token, a thread each. Channels come 32 at a time through shared
/// memory, for sixteen heads; sums are in ascending order of channels and heads.
__global__ void __launch_bounds__(kKeysOfBlock)
    score_any(const __grid_constant__ Call c, cuda::FastDivide blocks_of_token) {
  __shared__ float keys[kKeysOfBlock][kChannelsAtOnce + 1];
  __shared__ __align__(16) float queries[kChannelsAtOnce][kHeadsAtOnce];
  cuda::let_next_start();
  cuda::wait_for_previous();
  const auto t = static_cast<int>(blocks_of_token.of(blockIdx.x));
  const int begin = kKeysOfBlock * static_cast<int>(blockIdx.x - static_cast<uint32_t>(t) *
                                                                     blocks_of_token.divisor);
  const auto tid = static_cast<int>(threadIdx.x);
  const int request = c.request_of(t);
  const Call::Range range = c.range(request, t);
  const int j = begin + tid;
  if (begin >= range.end || begin + kKeysOfBlock <= range.first) {
    if (j < c.columns) c.logits[t][j] = -INFINITY;
    return;
  }
  const int32_t* pages = c.pages_of(request);
  const bool in_tree = c.tree_masks != nullptr;
  const TreeToken token = in_tree ? c.tree_token(t, range.end) : TreeToken{};
  const auto place_of = [&](int key) {
    const int i = min(max(key, range.first), range.end - 1);
    return c.place(pages, in_tree ? c.place_in_tree(token, i) : i);
  };
  float sum = 0.0f;
  for (int h0 = 0; h0 < c.H; h0 += kHeadsAtOnce) {
    float dots[kHeadsAtOnce] = {};
    for (int d0 = 0; d0 < c.D; d0 += kChannelsAtOnce) {
      __syncthreads();  // what was there has been read
      for (int n = tid; n < kKeysOfBlock * kChannelsAtOnce; n += kKeysOfBlock) {
        const int key = n / kChannelsAtOnce;
        const int d = n % kChannelsAtOnce;
        const Call::Place at = place_of(begin + key);
        keys[key][d] = d0 + d < c.D ? channel_of(c.key_format, c.keys.at(at.page, at.row),
                                                 c.key_scales.at(at.page, at.row), d0 + d)
                                    : 0.0f;
      }
      for (int n = tid; n < kHeadsAtOnce * kChannelsAtOnce; n += kKeysOfBlock) {
        const int h = n / kChannelsAtOnce;
        const int d = n % kChannelsAtOnce;
        const bool exists = h0 + h < c.H && d0 + d < c.D;
        queries[d][h] =
            exists ? channel_of(c.q_format, c.q.at(t, h0 + h), c.q_scales.at(t, h0 + h), d0 + d)
                   : 0.0f;
      }
      __syncthreads();
      const int channels = min(kChannelsAtOnce, c.D - d0);
      for (int d = 0; d < channels; ++d) {
        const float k = keys[tid][d];
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h)
          dots[h] = fmaf(queries[d][h], k, dots[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      if (h0 + h < c.H) sum += c.w[t][h0 + h] * (dots[h] <= 0.0f ? 0.0f : dots[h]);  // NaN stays
    }
  }
  if (j >= c.columns) return;
  float factor = 1.0f;
  if (c.key_format == Format::kE4m3) {
    const Call::Place at = place_of(j);
    factor = *reinterpret_cast<const float*>(c.key_scales.at(at.page, at.row));
  }
  c.logits[t][j] = range.sees(j) ? sum * factor : -INFINITY;
}

template <class Args>
Status run_any(Exec& ex, const Args& a) {
  const IndexLogitsCall call = call_of(a);
  const int64_t blocks = ceil_div<int64_t>(call.columns, kKeysOfBlock);
  return launch_kernel(ex, score_any, {.blocks = call.num_tokens * blocks, .threads = kKeysOfBlock},
                       device_call(call), cuda::FastDivide(blocks));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<IndexLogitsPaged> index_logits_paged_cuda{
#ifdef FATHOM_SM100
    {"tcgen05_never_run", sm(100), "", kTraits, run_tcgen05, MathUnit::kFp8, takes_codes},
#endif
    {"wgmma_ring", sm(90), "", kTraits | kSomeRowCounts, run_ring, MathUnit::kFp8, takes_ring,
     nullptr, suits_ring},
    {"wgmma", sm(90), "", kTraits, run_codes, MathUnit::kFp8, takes_codes},
    {"any_layout", sm(90), "", kTraits, run_any},
};

constinit const VariantTable<IndexLogitsRagged> index_logits_ragged_cuda{
#ifdef FATHOM_SM100
    {"tcgen05_never_run", sm(100), "", kTraits, run_tcgen05, MathUnit::kFp8, takes_codes},
#endif
    {"wgmma", sm(90), "", kTraits, run_codes, MathUnit::kFp8, takes_codes},
    {"any_layout", sm(90), "", kTraits, run_any},
};

}  // namespace fathom
