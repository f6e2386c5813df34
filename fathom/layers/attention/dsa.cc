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
#include "fathom/layers/side_work.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

/// The keys' norm. The reference's code leaves it its default (torch.nn.LayerNorm).
constexpr float kIndexNormEps = 1e-6f;

// DeepSeek-V3.2 report, section 2.1. Keys go to the cache whether or not anything is scored. What
// it takes of x comes first, since the queries wait for their latent.
struct Indexer {
  const MlaContext& m;
  const DsaContext& d;
  const IndexerWeights& w;
  const View& positions;  // of the step
  const IndexRows& index;
  IndexQueries queries;
  View weights;  // [T, Hi], as projected

  bool is_quantised() const { return d.options.keys == Format::kE4m3; }

  IndexTransform transform() const {
    return is_quantised() ? IndexTransform::kHadamard : IndexTransform::kNone;
  }

  Status write_keys(Exec& ex, const View& x) {
    Scope scope(ex.recorder, "indexer");
    const int64_t T = x.dim(0);
    FATHOM_ASSIGN(weights, ex.activations->tensor({T, d.shape.Hi}, x.format, "T,Hi"));
    ArenaScope temporary(*ex.activations);
    FATHOM_ASSIGN(const View k, ex.activations->tensor({T, d.shape.Di}, x.format, "T,Di"));
    FATHOM_TRY(linear(ex, "wk", x, w.wk, k));
    FATHOM_TRY(linear(ex, "weights_proj", x, w.weights_proj, weights));
    return launch<IndexKeyWrite>(ex, "index_key",
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
                                  .transform = transform()});
  }

  Status make_queries(Exec& ex, const View& q_a) {
    Scope scope(ex.recorder, "indexer");
    const IndexerShape& s = d.shape;
    const int64_t T = q_a.dim(0);
    Arena& arena = *ex.activations;
    FATHOM_ASSIGN(queries.q, arena.tensor({T, s.Hi, s.Di}, d.options.keys, "T,Hi,Di"));
    FATHOM_ASSIGN(queries.w, arena.tensor({T, s.Hi}, Format::kF32, "T,Hi"));
    ArenaScope temporary(arena);
    FATHOM_ASSIGN(const View q, arena.tensor({T, s.Hi * s.Di}, q_a.format, "T,Hi*Di"));
    FATHOM_TRY(linear(ex, "wq_b", q_a, w.wq_b, q));
    const double scale = 1.0 / std::sqrt(static_cast<double>(s.Di) * static_cast<double>(s.Hi));
    return launch<IndexQuery>(ex, "index_query",
                              {.q = reshape(q, {T, s.Hi, s.Di}, "T,Hi,Di"),
                               .positions = positions,
                               .table = m.rope_table,
                               .w = weights,
                               .q_out = queries.q,
                               .q_scales = {},
                               .w_out = queries.w,
                               .style = RopeStyle::kHalfSplit,
                               .channels = RopeChannels::kFirst,
                               .transform = transform(),
                               .weight_scale = static_cast<float>(scale)});
  }

  // Slots [T, topk] of the keys that each token of a range attends to.
  Result<View> choose(Exec& ex, const TokenRange& range) const {
    Scope scope(ex.recorder, "sparse");
    const int64_t begin = range.token_begin;
    const int64_t T = range.num_tokens;
    Arena& arena = *ex.activations;
    FATHOM_ASSIGN(const View slots, arena.tensor({T, d.shape.topk}, Format::kI32, "T,Kt"));
    FATHOM_ASSIGN(const View lengths, arena.tensor({T}, Format::kI32, "T"));
    FATHOM_TRY(launch<VisibleRows>(
        ex, "visible_rows",
        {.positions = slice_rows(positions, begin, T), .rows = lengths, .tokens_per_row = 1}));
    const IndexScored all{.queries = rows_of(queries, begin, T),
                          .lengths = lengths,
                          .block_table = range.block_table,
                          .q_offsets = range.query_offsets_view,
                          .num_keys = range.most_keys(),
                          .tree_masks = range.tree_masks};
    FATHOM_TRY(choose_rows(ex, m.request_offsets, range, all, index, slots));
    return slots;
  }
};

// Queries of the absorbed form [T, Nh, Lkv+Dr]; p: of a range.
Result<View> absorbed_queries(Exec& ex,
                              const MlaShape& s,
                              const MlaWeights& w,
                              const MlaProjected& p) {
  const int64_t T = p.q.dim(0);
  Arena& arena = *ex.activations;
  FATHOM_ASSIGN(const View q_lat, arena.tensor({T, s.Nh, s.Lkv}, p.q.format, "T,Nh,Lkv"));
  FATHOM_ASSIGN(const View q, arena.tensor({T, s.Nh, s.cache_width()}, p.q.format, "T,Nh,Lkv+Dr"));
  FATHOM_TRY(head_linear(ex, "w_kc", slice_cols(p.q, 0, s.Dn, "T,Nh,Dn"), w.w_kc, q_lat));
  FATHOM_TRY(launch<ConcatAbsorbedQ>(
      ex, "concat_mla_absorb_q",
      {.q_lat = q_lat, .q_pe = slice_cols(p.q, s.Dn, s.Dr, "T,Nh,Dr"), .q = q}));
  return q;
}

// The absorbed form over chosen rows.
Status attend_sparse(Exec& ex,
                     const MlaShape& s,
                     const MlaWeights& w,
                     const View& q,
                     const View& slots,
                     const CacheRows& cache,
                     const View& o) {
  FATHOM_ASSIGN(const View o_lat,
                ex.activations->tensor({q.dim(0), s.Nh, s.Lkv}, q.format, "T,Nh,Lkv"));
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
  if (m.shape.Lq == 0) return unsupported("the indexer reads the query latent: q_lora_rank is 0");
  FATHOM_TRY(check_prefill_chunk(m.options, cache));
  Scope scope(ex.recorder, "self_attn");
  ArenaScope arena(*ex.activations);
  const auto is_sparse = [&](int64_t keys) {
    // The dense forms read rows without scales.
    return m.options.always_absorbed || cache.scales.present() || keys > d.shape.topk;
  };
  const auto num_sparse = [&](const TokenRange& range) {
    int64_t scored = 0;
    for (int64_t b = 0; b < range.num_requests(); ++b)
      scored += is_sparse(range.keys_of(b)) ? 1 : 0;
    return scored;
  };
  SideWork side(ex, SideNumber::kFirst, indexes_beside(batch));
  Indexer index_keys{.m = m,
                     .d = d,
                     .w = indexer,
                     .positions = batch.positions,
                     .index = index,
                     .queries = {},
                     .weights = {}};
  FATHOM_TRY(side.run([&](Exec& own) { return index_keys.write_keys(own, x); }));
  FATHOM_ASSIGN(MlaProjected p, mla_latents(ex, m, w, x));
  View chosen;  // of the decode range, where that is all of the step
  const auto choose = [&](Exec& own) -> Status {
    FATHOM_TRY(index_keys.make_queries(own, p.q_a));
    const bool alone = batch.prefill.num_tokens == 0;
    if (!alone || num_sparse(batch.decode) < batch.decode.num_requests()) return {};
    FATHOM_ASSIGN(chosen, index_keys.choose(own, batch.decode));
    return {};
  };
  FATHOM_TRY(side.run(choose));
  FATHOM_TRY(mla_queries(ex, m, w, p));
  FATHOM_TRY(mla_rotate_and_write(ex, m, p, batch.positions, cache));

  FATHOM_ASSIGN(const View o,
                ex.activations->tensor({T, m.shape.Nh * m.shape.Dv}, x.format, "T,Nh*Dv"));
  const View heads = reshape(o, {T, m.shape.Nh, m.shape.Dv}, "T,Nh,Dv");
  const auto attend = [&](const TokenRange& range, bool decode, bool sparse) -> Status {
    if (!sparse) {
      FATHOM_TRY(side.join());
      return mla_attend_range(ex, m, w, batch, range, decode, p, cache, heads);
    }
    ArenaScope range_arena(*ex.activations);
    View slots = chosen;
    if (!slots.present()) {
      FATHOM_TRY(side.join());
      FATHOM_ASSIGN(slots, index_keys.choose(ex, range));
    }
    Scope sparse_scope(ex.recorder, "sparse");
    const int64_t begin = range.token_begin;
    const int64_t count = range.num_tokens;
    FATHOM_ASSIGN(const View q, absorbed_queries(ex, m.shape, w, rows_of(p, begin, count)));
    FATHOM_TRY(side.join());
    tap(probe, "indexer.slots", layer, slots);
    return attend_sparse(ex, m.shape, w, q, slots, cache, slice_rows(heads, begin, count));
  };
  const auto attend_phase = [&](const TokenRange& range, bool decode) -> Status {
    const int64_t scored = num_sparse(range);
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
