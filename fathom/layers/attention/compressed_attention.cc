#include "fathom/layers/attention/compressed_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "fathom/kernels/attn/sparse_mla/sparse_mla.h"
#include "fathom/kernels/compress/kv_compress/kv_compress.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/rope/inverse_rope/inverse_rope.h"
#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write.h"
#include "fathom/kernels/sparse/index_prepare/index_prepare.h"
#include "fathom/kernels/sparse/index_slots/index_slots.h"
#include "fathom/layers/attention/each_range.h"
#include "fathom/layers/attention/each_request.h"
#include "fathom/layers/linear.h"
#include "fathom/layers/norm.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

const View& rope_of(const CompressedContext& m, const CompressedWeights& w) {
  return w.ratio == CompressRatio::kNone ? m.window_rope : m.compressed_rope;
}

// Completes rows from the step and the ring, then leaves the step's own tokens in the ring.
Status compress(Exec& ex,
                const CompressedContext& m,
                const CompressorWeights& w,
                const CompressorRows& cache,
                const View& x,
                const View& positions,
                CompressTransform transform) {
  Scope scope(ex.recorder, "compressor");
  ArenaScope arena(*ex.activations);
  const std::array<Op, 2> parts = {Op("wkv"), Op("wgate")};
  FATHOM_ASSIGN(const View u_z,
                ex.activations->tensor({x.dim(0), w.kv_gate.rows()}, Format::kF32, w.u_z_axes));
  FATHOM_TRY(linear_rows_of(ex, "wkv_gate", parts, x, w.kv_gate, u_z));
  FATHOM_TRY(launch<CompressPool>(ex, "compress",
                                  {.u_z = u_z,
                                   .state_u = cache.state_u,
                                   .state_z = cache.state_z,
                                   .ape = w.ape,
                                   .gather = cache.gather,
                                   .positions = cache.positions,
                                   .norm = w.norm,
                                   .table = m.compressed_rope,
                                   .slots = cache.slots,
                                   .values = cache.fields.values,
                                   .rope = cache.fields.rope,
                                   .scales = cache.fields.scales,
                                   .eps = m.shape.eps,
                                   .activations = x.format,
                                   .transform = transform}));
  return launch<CompressStateWrite>(ex, "compressor_state",
                                    {.u_z = u_z,
                                     .ape = w.ape,
                                     .positions = positions,
                                     .slots = cache.state_slots,
                                     .state_u = cache.state_u,
                                     .state_z = cache.state_z});
}

bool is_quantised_key(Format format) {
  return format == Format::kMxfp4 || format == Format::kE4m3;
}

// The indexer's side of a step: keys to the cache, queries and weights ready to be scored.
Result<IndexQueries> prepare_index(Exec& ex,
                                   const CompressedContext& m,
                                   const CompressedIndexerWeights& w,
                                   const CompressorRows& keys,
                                   const View& c,
                                   const View& x,
                                   const View& positions) {
  Scope scope(ex.recorder, "indexer");
  const CompressedShape& s = m.shape;
  const int64_t T = x.dim(0);
  const bool packed = m.index_keys == Format::kMxfp4;
  const bool quantised = is_quantised_key(m.index_keys);
  Arena& arena = *ex.activations;

  IndexQueries out;
  FATHOM_ASSIGN(out.q, packed ? arena.tensor({T, s.Hi, s.Di / 2}, Format::kU8, "T,Hi,Di/2")
                              : arena.tensor({T, s.Hi, s.Di}, m.index_keys, "T,Hi,Di"));
  if (packed) {
    FATHOM_ASSIGN(out.q_scales, arena.tensor({T, s.Hi, s.Di / 32}, Format::kUe8m0, "T,Hi,Di/32"));
  }
  FATHOM_ASSIGN(out.w, arena.tensor({T, s.Hi}, Format::kF32, "T,Hi"));
  ArenaScope temporary(arena);
  FATHOM_ASSIGN(const View q, arena.tensor({T, s.Hi * s.Di}, x.format, "T,Hi*Di"));
  FATHOM_ASSIGN(const View weights, arena.tensor({T, s.Hi}, x.format, "T,Hi"));
  FATHOM_TRY(compress(ex, m, w.keys, keys, x, positions,
                      quantised ? CompressTransform::kHadamard : CompressTransform::kNone));
  FATHOM_TRY(linear(ex, "wq_b", c, w.wq_b, q));
  FATHOM_TRY(linear(ex, "weights_proj", x, w.weights_proj, weights));
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.Di) * static_cast<double>(s.Hi));
  FATHOM_TRY(launch<IndexQuery>(
      ex, "index_query",
      {.q = reshape(q, {T, s.Hi, s.Di}, "T,Hi,Di"),
       .positions = positions,
       .table = m.compressed_rope,
       .w = weights,
       .q_out = out.q,
       .q_scales = out.q_scales,
       .w_out = out.w,
       .style = RopeStyle::kInterleaved,
       .channels = RopeChannels::kLast,
       .transform = quantised ? IndexTransform::kHadamard : IndexTransform::kNone,
       .weight_scale = static_cast<float>(scale)}));
  return out;
}

// Slots [T, K] of the compressed rows that each token of a range attends to; absent if no token
// sees one.
Result<View> compressed_slots(Exec& ex,
                              const CompressedContext& m,
                              const CompressedWeights& w,
                              const TokenRange& range,
                              const View& positions,
                              const IndexQueries& queries,
                              const CompressedRows& cache) {
  if (w.ratio == CompressRatio::kNone) return View{};
  const auto ratio = static_cast<int64_t>(w.ratio);
  const int64_t T = range.num_tokens;
  const int64_t rows = range.most_keys() / ratio;
  if (rows == 0) return View{};
  const bool chosen = w.ratio == CompressRatio::kSparse && rows > m.shape.topk;
  Arena& arena = *ex.activations;
  FATHOM_ASSIGN(const View slots, arena.tensor({T, chosen ? m.shape.topk : rows}, Format::kI32,
                                               chosen ? "T,Kt" : "T,seen_rows"));
  if (!chosen) {
    FATHOM_TRY(launch<VisibleSlots>(ex, "visible_slots",
                                    {.positions = positions,
                                     .block_table = range.block_table,
                                     .q_offsets = range.query_offsets_view,
                                     .slots = slots,
                                     .page_rows = cache.rows.fields.values.dim(1),
                                     .tokens_per_row = ratio}));
    return slots;
  }
  ArenaScope temporary(arena);
  FATHOM_ASSIGN(const View lengths, arena.tensor({T}, Format::kI32, "T"));
  FATHOM_TRY(launch<VisibleRows>(
      ex, "visible_rows", {.positions = positions, .rows = lengths, .tokens_per_row = ratio}));
  const IndexScored scored{.queries = queries,
                           .lengths = lengths,
                           .block_table = range.block_table,
                           .q_offsets = range.query_offsets_view,
                           .num_keys = rows,
                           .tokens_per_key = ratio};
  const IndexRows keys{
      .keys = cache.keys.fields.values, .scales = cache.keys.fields.scales, .slots = {}};
  FATHOM_TRY(choose_rows(ex, m.request_offsets, range, scored, keys, slots));
  return slots;
}

struct Projected {
  View q;   // [T, Nh, D]
  View kv;  // [T, D]
};

// Tokens [begin, begin + count) of the step: their rows go to the ring, then they attend. No two
// of one request may share a row of the ring.
Status attend_piece(Exec& ex,
                    const CompressedContext& m,
                    const CompressedWeights& w,
                    const CompressedRows& cache,
                    const Projected& p,
                    const View& positions,
                    const View& ring,
                    const View& rows,
                    int64_t range_begin,
                    int64_t begin,
                    int64_t count,
                    const View& o) {
  const View q = slice_rows(p.q, begin, count);
  FATHOM_TRY(launch<QnormRopeKvWrite>(ex, "qnorm_rope_kv_write",
                                      {.q = q,
                                       .kv = slice_rows(p.kv, begin, count),
                                       .kv_norm = w.kv_norm,
                                       .positions = slice_rows(positions, begin, count),
                                       .table = rope_of(m, w),
                                       .slots = slice_rows(cache.window_slots, begin, count),
                                       .q_out = q,
                                       .values = cache.window.values,
                                       .rope = cache.window.rope,
                                       .scales = cache.window.scales,
                                       .eps = m.shape.eps}));
  SparseRows extra;
  if (rows.present()) {
    const CacheFields& f = cache.rows.fields;
    extra = {.values = f.values,
             .slots = slice_rows(rows, begin - range_begin, count),
             .rope = f.rope,
             .scales = f.scales};
  }
  return launch<SparseMlaDecode>(ex, "attn",
                                 {.q = q,
                                  .rows = {.values = cache.window.values,
                                           .slots = slice_rows(ring, begin - range_begin, count),
                                           .rope = cache.window.rope,
                                           .scales = cache.window.scales},
                                  .o = slice_rows(o, begin, count),
                                  .extra = extra,
                                  .sink = w.sink,
                                  .lse = {},
                                  .scale = m.shape.scale});
}

// A range in one piece where the ring holds the window of each of its tokens until all have
// attended; else request by request in pieces of which that is true.
Status attend_range(Exec& ex,
                    const CompressedContext& m,
                    const CompressedWeights& w,
                    const CompressedRows& cache,
                    const TokenRange& range,
                    const Projected& p,
                    const IndexQueries& queries,
                    const View& all_positions,
                    const Probe* probe,
                    int layer,
                    const View& o) {
  ArenaScope arena(*ex.activations);
  const int64_t ring_rows = cache.window.values.dim(1);
  const View positions = slice_rows(all_positions, range.token_begin, range.num_tokens);
  FATHOM_ASSIGN(const View ring,
                ex.activations->tensor({range.num_tokens, m.shape.W}, Format::kI32, "T,W"));
  FATHOM_TRY(launch<RingSlots>(ex, "window_slots",
                               {.positions = positions,
                                .request_slots = range.request_slots,
                                .q_offsets = range.query_offsets_view,
                                .slots = ring,
                                .ring_rows = ring_rows}));
  FATHOM_ASSIGN(const View rows,
                compressed_slots(ex, m, w, range, positions,
                                 rows_of(queries, range.token_begin, range.num_tokens), cache));
  if (w.ratio == CompressRatio::kSparse && rows.present()) tap(probe, "indexer.slots", layer, rows);
  const int64_t most = ring_rows - m.shape.W + 1;
  const auto piece = [&](int64_t begin, int64_t count) {
    return attend_piece(ex, m, w, cache, p, all_positions, ring, rows, range.token_begin, begin,
                        count, o);
  };
  int64_t longest = 0;
  for (size_t b = 0; b + 1 < range.query_offsets.size(); ++b)
    longest = std::max<int64_t>(longest, range.query_offsets[b + 1] - range.query_offsets[b]);
  if (longest <= most) return piece(range.token_begin, range.num_tokens);
  const CallSite here = CallSite::here();
  return each_request(ex, range, [&](const RangeRequest& request) -> Status {
    int number = 0;
    for (int64_t at = 0; at < request.count; at += most) {
      Scope scope(ex.recorder, "piece", number++, here);
      FATHOM_TRY(piece(range.token_begin + request.begin + at, std::min(most, request.count - at)));
    }
    return {};
  });
}

}  // namespace

Status compressed_attend(Exec& ex,
                         const CompressedContext& m,
                         const CompressedWeights& w,
                         const AttentionBatch& batch,
                         const CompressedRows& cache,
                         const View& x,
                         const View& y,
                         const Probe* probe,
                         int layer) {
  const CompressedShape& s = m.shape;
  const int64_t T = x.dim(0);
  FATHOM_CHECK(T == batch.num_tokens(), str_cat(T, " tokens, ranges of ", batch.num_tokens()));
  Scope scope(ex.recorder, "attn");
  Arena& arena = *ex.activations;
  ArenaScope temporary(arena);
  const std::array<Op, 2> parts = {Op("wq_a"), Op("wkv")};
  FATHOM_ASSIGN(const View q_kv, arena.tensor({T, s.Lq + s.D}, x.format, "T,Lq+D"));
  FATHOM_TRY(linear_rows_of(ex, "wq_kv_a", parts, x, w.q_kv_a, q_kv, LinearUse::kLatentDown));
  FATHOM_ASSIGN(const View c, arena.tensor({T, s.Lq}, x.format, "T,Lq"));
  FATHOM_TRY(rms_norm(ex, "q_norm", slice_cols(q_kv, 0, s.Lq, "T,Lq"), w.q_norm, c, s.eps));
  FATHOM_ASSIGN(const View q, arena.tensor({T, s.Nh * s.D}, x.format, "T,Nh*D"));
  FATHOM_TRY(linear(ex, "wq_b", c, w.q_b, q));
  const Projected p{.q = reshape(q, {T, s.Nh, s.D}, "T,Nh,D"),
                    .kv = slice_cols(q_kv, s.Lq, s.D, "T,D")};

  IndexQueries queries;
  if (w.ratio != CompressRatio::kNone) {
    FATHOM_TRY(compress(ex, m, w.rows, cache.rows, x, batch.positions, CompressTransform::kNone));
  }
  if (w.ratio == CompressRatio::kSparse) {
    FATHOM_ASSIGN(queries, prepare_index(ex, m, w.indexer, cache.keys, c, x, batch.positions));
  }
  FATHOM_ASSIGN(const View o, arena.tensor({T, s.Nh, s.D}, x.format, "T,Nh,D"));
  FATHOM_TRY(each_range(ex, batch, [&](const TokenRange& range, bool /*decode*/) {
    return attend_range(ex, m, w, cache, range, p, queries, batch.positions, probe, layer, o);
  }));
  FATHOM_TRY(launch<InverseRope>(ex, "inverse_rope",
                                 {.o = o, .positions = batch.positions, .table = rope_of(m, w)}));
  FATHOM_ASSIGN(const View o_a, arena.tensor({T, s.Go, s.Lo}, x.format, "T,Go,Lo"));
  FATHOM_TRY(group_rows_linear(ex, "wo_a", reshape(o, {T, s.Go, s.Nh * s.D / s.Go}, "T,Go,Hg*D"),
                               w.o_a, "Go,Lo,Hg*D", o_a));
  return linear(ex, "wo_b", reshape(o_a, {T, s.Go * s.Lo}, "T,Go*Lo"), w.o_b, y);
}

}  // namespace fathom
