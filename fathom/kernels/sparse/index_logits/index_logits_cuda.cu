#include <algorithm>
#include <limits>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sparse/index_logits/index_logits.h"
#include "fathom/kernels/sparse/index_logits/index_logits_call.h"
#include "fathom/kernels/sparse/index_logits/index_logits_tiles.cuh"

namespace fathom {
namespace {

using namespace index_logits;  // the parts of this kernel

// ---- calls ----

ByteRows byte_rows(const View& v) {
  if (!v.present()) return {};
  const int64_t bytes = element_bytes(v.format);
  return {v.as<const std::byte>(), v.stride(0) * bytes, v.stride(1) * bytes};
}

Call device_call(const IndexLogitsCall& call) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool paged = call.block_table != nullptr;
  const int64_t rows = call.keys.dim(0) == 0 ? 0 : call.keys.dim(1);
  const int64_t room = paged ? call.block_table->dim(1) * rows : rows;
  return {.q = byte_rows(call.q),
          .q_scales = byte_rows(call.q_scales),
          .w = cuda::rows_of<const float>(call.w),
          .T = static_cast<int>(call.num_tokens),
          .H = static_cast<int>(call.heads),
          .D = static_cast<int>(call.width),
          .keys = byte_rows(call.keys),
          .key_scales = byte_rows(call.key_scales),
          .q_format = call.q.format,
          .key_format = call.keys.format,
          .block_table =
              paged ? cuda::rows_of<const int32_t>(*call.block_table) : cuda::Rows<const int32_t>{},
          .num_pages = static_cast<int>(call.keys.dim(0)),
          .room = static_cast<int>(std::min(room, kMost)),
          .page_size = cuda::FastDivide(call.page_size),
          .q_offsets = call.q_offsets,
          .num_requests = static_cast<int>(call.num_requests),
          .starts = call.starts,
          .ends = call.ends,
          .tree_masks = call.tree_masks,
          .logits = cuda::rows_of<float>(call.logits),
          .columns = static_cast<int>(call.columns)};
}

// ---- codes on the tensor cores ----

/// Few enough that the last blocks do not run alone for long, enough that queries are laid out
/// rarely.
constexpr int64_t kMostTiles = 16;  // of a block

NearRows near_rows(const View& v) {
  const ByteRows rows = byte_rows(v);
  return {rows.data, static_cast<uint32_t>(rows.outer), static_cast<uint32_t>(rows.inner)};
}

/// Tokens that share a request, at most kMostQueries, and as many tiles as fill the GPU. A token of
/// a tree is by itself, as its keys are its own.
Cuts cuts_of(const IndexLogitsCall& call, const DeviceInfo& gpu) {
  const int64_t requests = std::max<int64_t>(call.num_requests, 1);
  const int64_t most = call.tree_masks == nullptr ? kMostQueries : 1;
  const int64_t queries = std::clamp<int64_t>(ceil_div(call.num_tokens, requests), 1, most);
  const int64_t token_blocks = ceil_div(call.num_tokens, queries);
  const int64_t tiles = ceil_div<int64_t>(call.columns, kTileKeys);
  const int64_t at_once = std::max<int64_t>(int64_t{gpu.num_sms} * kBlocksOfSm, 1);
  return {.keys = near_rows(call.keys),
          .key_scales = near_rows(call.key_scales),
          .queries = static_cast<int>(queries),
          .tiles = static_cast<int>(
              std::clamp<int64_t>(ceil_div(token_blocks * tiles, at_once), 1, kMostTiles)),
          .token_blocks = cuda::FastDivide(token_blocks),
          .read_once = token_blocks <= requests};
}

template <class F>
Status launch_form(Exec& ex, const IndexLogitsCall& call, const Cuts& cuts) {
  const int64_t chunks = ceil_div<int64_t>(call.columns, int64_t{cuts.tiles} * kTileKeys);
  return launch_kernel(
      ex, score_codes<F>,
      {.blocks = ceil_div<int64_t>(call.num_tokens, cuts.queries) * chunks,
       .threads = kThreads,
       .shared_bytes = cuts.queries * static_cast<int64_t>(sizeof(QueryMemory)) + kAtom},
      device_call(call), cuts);
}

template <class Rows>
Status launch_codes(Exec& ex, const IndexLogitsCall& call) {
  if (call.num_tokens == 0 || call.columns == 0) return {};
  const Cuts cuts = cuts_of(call, *ex.device);
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

/// True if strides, but that of the last axis, have 32 bits.
bool is_near(const View& v) {
  for (int i = 0; i + 1 < v.rank; ++i) {
    if (v.dim(i) > 1 && (v.stride(i) * element_bytes(v.format)) >> 32 != 0) return false;
  }
  return true;
}

/// Rows are loaded sixteen bytes at a time, the scales of a key four.
template <class Args>
bool takes_codes(const Args& a) {
  const bool codes = a.keys.format == Format::kE4m3 || a.keys.format == Format::kU8;
  return codes && a.q.format == a.keys.format && index_width(a.q.format, a.q.dim(2)) == kChannels &&
         a.q.dim(1) <= kMostHeads && cuda::is_aligned(a.q, 16) && cuda::is_aligned(a.keys, 16) &&
         cuda::is_aligned(a.key_scales, 4) && is_near(a.keys) && is_near(a.key_scales);
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
    {"wgmma", sm(90), "", kTraits, run_codes, MathUnit::kFp8, takes_codes},
    {"any_layout", sm(90), "", kTraits, run_any},
};

constinit const VariantTable<IndexLogitsRagged> index_logits_ragged_cuda{
    {"wgmma", sm(90), "", kTraits, run_codes, MathUnit::kFp8, takes_codes},
    {"any_layout", sm(90), "", kTraits, run_any},
};

}  // namespace fathom
