#include "fathom/layers/attention/dsa.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "fathom/kernels/attn/mla_concat/mla_concat.h"
#include "fathom/kernels/attn/sparse_mla/sparse_mla.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/sparse/index_prepare/index_prepare.h"
#include "fathom/kernels/sparse/index_slots/index_slots.h"
#include "fathom/layers/attention/each_range.h"
#include "fathom/layers/attention/each_request.h"
#include "fathom/layers/attention/index_choice.h"
#include "fathom/layers/linear.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

/// The keys' norm. The reference's code leaves it its default (torch.nn.LayerNorm).
constexpr float kIndexNormEps = 1e-6f;

// DeepSeek-V3.2 report, section 2.1. Keys go to the cache whether or not anything is scored.
Result<IndexQueries> prepare_index(Exec& ex,
                                   const MlaContext& m,
                                   const DsaContext& d,
                                   const IndexerWeights& w,
                                   const View& q_a,
                                   const View& x,
                                   const View& positions,
                                   const IndexRows& index) {
  Scope scope(ex.recorder, "indexer");
  const IndexerShape& s = d.shape;
  const int64_t T = x.dim(0);
  const bool quantised = d.options.keys == Format::kE4m3;
  const IndexTransform transform = quantised ? IndexTransform::kHadamard : IndexTransform::kNone;
  Arena& arena = *ex.activations;

  FATHOM_ASSIGN(const View q_out, arena.tensor({T, s.Hi, s.Di}, d.options.keys, "T,Hi,Di"));
  FATHOM_ASSIGN(const View w_out, arena.tensor({T, s.Hi}, Format::kF32, "T,Hi"));
  ArenaScope temporary(arena);
  FATHOM_ASSIGN(const View q, arena.tensor({T, s.Hi * s.Di}, x.format, "T,Hi*Di"));
  FATHOM_ASSIGN(const View k, arena.tensor({T, s.Di}, x.format, "T,Di"));
  FATHOM_ASSIGN(const View weights, arena.tensor({T, s.Hi}, x.format, "T,Hi"));
  FATHOM_TRY(linear(ex, "wq_b", q_a, w.wq_b, q));
  FATHOM_TRY(linear(ex, "wk", x, w.wk, k));
  FATHOM_TRY(linear(ex, "weights_proj", x, w.weights_proj, weights));
  FATHOM_TRY(launch<IndexKeyWrite>(ex, "index_key",
                                   {.k = k,
                                    .norm_w = w.k_norm,
                                    .norm_b = w.k_norm_bias,
                                    .positions = positions,
                                    .table = m.rope_table,
                                    .slots = index.slots,
                                    .values = index.keys,
                                    .scales = index.scales,
                                    .eps = kIndexNormEps,
                                    .style = RopeStyle::kHalfSplit,
                                    .channels = RopeChannels::kFirst,
                                    .transform = transform}));
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.Di) * static_cast<double>(s.Hi));
  FATHOM_TRY(launch<IndexQuery>(ex, "index_query",
                                {.q = reshape(q, {T, s.Hi, s.Di}, "T,Hi,Di"),
                                 .positions = positions,
                                 .table = m.rope_table,
                                 .w = weights,
                                 .q_out = q_out,
                                 .q_scales = {},
                                 .w_out = w_out,
                                 .style = RopeStyle::kHalfSplit,
                                 .channels = RopeChannels::kFirst,
                                 .transform = transform,
                                 .weight_scale = static_cast<float>(scale)}));
  return IndexQueries{.q = q_out, .q_scales = {}, .w = w_out};
}

// The absorbed form over chosen rows. p, queries and positions are those of the range.
Status attend_sparse(Exec& ex,
                     const MlaContext& m,
                     const DsaContext& d,
                     const MlaWeights& w,
                     const TokenRange& range,
                     const MlaProjected& p,
                     const IndexQueries& queries,
                     const View& positions,
                     const CacheRows& cache,
                     const IndexRows& index,
                     const Probe* probe,
                     int layer,
                     const View& o) {
  Scope scope(ex.recorder, "sparse");
  const MlaShape& s = m.shape;
  const int64_t T = range.num_tokens;
  const Format format = p.q.format;
  Arena& arena = *ex.activations;
  const int64_t num_keys = range.most_keys();

  FATHOM_ASSIGN(const View slots, arena.tensor({T, d.shape.topk}, Format::kI32, "T,Kt"));
  FATHOM_ASSIGN(const View lengths, arena.tensor({T}, Format::kI32, "T"));
  FATHOM_TRY(launch<VisibleRows>(ex, "visible_rows",
                                 {.positions = positions, .rows = lengths, .tokens_per_row = 1}));
  const IndexScored all{.queries = queries,
                        .lengths = lengths,
                        .block_table = range.block_table,
                        .q_offsets = range.query_offsets_view,
                        .num_keys = num_keys,
                        .tree_masks = range.tree_masks};
  FATHOM_TRY(choose_rows(ex, m.request_offsets, range, all, index, slots));
  tap(probe, "indexer.slots", layer, slots);

  FATHOM_ASSIGN(const View q_lat, arena.tensor({T, s.Nh, s.Lkv}, format, "T,Nh,Lkv"));
  FATHOM_ASSIGN(const View q, arena.tensor({T, s.Nh, s.cache_width()}, format, "T,Nh,Lkv+Dr"));
  FATHOM_TRY(head_linear(ex, "w_kc", slice_cols(p.q, 0, s.Dn, "T,Nh,Dn"), w.w_kc, q_lat));
  FATHOM_TRY(launch<ConcatAbsorbedQ>(
      ex, "concat_mla_absorb_q",
      {.q_lat = q_lat, .q_pe = slice_cols(p.q, s.Dn, s.Dr, "T,Nh,Dr"), .q = q}));
  FATHOM_ASSIGN(const View o_lat, arena.tensor({T, s.Nh, s.Lkv}, format, "T,Nh,Lkv"));
  FATHOM_TRY(launch<SparseMlaDecode>(
      ex, "attn_sparse",
      {.q = q,
       .rows = {.values = cache.rows, .slots = slots, .rope = cache.rope, .scales = cache.scales},
       .o = o_lat,
       .extra = {},
       .sink = {},
       .lse = {},
       .scale = s.softmax_scale}));
  return head_linear(ex, "w_vc", o_lat, w.w_vc, o);
}

/// A request of a range, as a range of its own whose offsets begin at 0.
struct Part {
  TokenRange range;
  std::array<int32_t, 2> offsets;
};

void part_of(const TokenRange& range, const MlaContext& m, const RangeRequest& r, Part& part) {
  part.offsets = {0, static_cast<int32_t>(r.count)};
  part.range = {
      .token_begin = range.token_begin + r.begin,
      .num_tokens = r.count,
      .query_offsets = part.offsets,
      .kv_lens = range.kv_lens.subspan(static_cast<size_t>(r.index), 1),
      .query_offsets_view = r.count < m.request_offsets.dim(0)
                                ? reshape(slice_rows(m.request_offsets, r.count, 1), {2}, "2")
                                : View{},
      .kv_lens_view = slice_rows(range.kv_lens_view, r.index, 1),
      .block_table = slice_rows(range.block_table, r.index, 1),
      .request_slots = {},
      .tree_masks =
          range.tree_masks.present() ? slice_rows(range.tree_masks, r.begin, r.count) : View{},
      .tree_begins =
          range.tree_begins.present() ? slice_rows(range.tree_begins, r.index, 1) : View{}};
}

}  // namespace

Status dsa_attend(Exec& ex,
                  const MlaContext& m,
                  const DsaContext& d,
                  const MlaWeights& w,
                  const IndexerWeights& indexer,
                  const AttentionBatch& batch,
                  const CacheRows& cache,
                  const IndexRows& index,
                  const View& x,
                  const View& y,
                  const Probe* probe,
                  int layer) {
  const int64_t T = x.dim(0);
  FATHOM_CHECK(T == batch.num_tokens(), str_cat(T, " tokens, ranges of ", batch.num_tokens()));
  FATHOM_TRY(check_prefill_chunk(m.options, cache));
  Scope scope(ex.recorder, "self_attn");
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const MlaProjected p, mla_project(ex, m, w, x));
  if (!p.q_a.present()) return unsupported("the indexer reads the query latent: q_lora_rank is 0");
  FATHOM_ASSIGN(const IndexQueries queries,
                prepare_index(ex, m, d, indexer, p.q_a, x, batch.positions, index));
  FATHOM_TRY(mla_rotate_and_write(ex, m, p, batch.positions, cache));

  FATHOM_ASSIGN(const View o,
                ex.activations->tensor({T, m.shape.Nh * m.shape.Dv}, x.format, "T,Nh*Dv"));
  const View heads = reshape(o, {T, m.shape.Nh, m.shape.Dv}, "T,Nh,Dv");
  const auto is_sparse = [&](int64_t keys) {
    // The dense forms read rows without scales.
    return m.options.always_absorbed || cache.scales.present() || keys > d.shape.topk;
  };
  const auto attend = [&](const TokenRange& range, bool decode, bool sparse) -> Status {
    if (!sparse) return mla_attend_range(ex, m, w, batch, range, decode, p, cache, heads);
    ArenaScope range_arena(*ex.activations);
    const int64_t begin = range.token_begin;
    const int64_t count = range.num_tokens;
    return attend_sparse(ex, m, d, w, range, rows_of(p, begin, count),
                         rows_of(queries, begin, count), slice_rows(batch.positions, begin, count),
                         cache, index, probe, layer, slice_rows(heads, begin, count));
  };
  const auto attend_phase = [&](const TokenRange& range, bool decode) -> Status {
    int64_t scored = 0;
    for (int64_t b = 0; b < range.num_requests(); ++b)
      scored += is_sparse(range.keys_of(b)) ? 1 : 0;
    if (scored == 0 || scored == range.num_requests()) return attend(range, decode, scored > 0);
    return each_request(ex, range, [&](const RangeRequest& request) {
      Part part;
      part_of(range, m, request, part);
      return attend(part.range, decode, is_sparse(part.range.kv_lens[0]));
    });
  };
  FATHOM_TRY(each_range(ex, batch, attend_phase));
  return linear(ex, "o_proj", o, w.o, y);
}

}  // namespace fathom
