#include "fathom/layers/attention/compressed_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/sparse_mla/sparse_mla.h"
#include "fathom/kernels/compress/kv_compress/kv_compress.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write.h"
#include "fathom/kernels/sparse/index_prepare/index_prepare.h"
#include "fathom/kernels/sparse/index_slots/index_slots.h"
#include "fathom/layers/attention/each_range.h"
#include "fathom/layers/attention/each_request.h"
#include "fathom/layers/linear.h"
#include "fathom/layers/norm.h"
#include "fathom/layers/side_work.h"
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

// The indexer of a step: keys to the cache, queries and weights ready to be scored. What it takes
// of x comes first, since the queries wait for their latent.
struct Indexer {
  const CompressedContext& m;
  const CompressedIndexerWeights& w;
  const View& positions;
  IndexQueries queries;
  View weights;  // [T, Hi], as projected

  bool is_quantised() const {
    return m.index_keys == Format::kMxfp4 || m.index_keys == Format::kE4m3;
  }

  Status write_keys(Exec& ex, const CompressorRows& keys, const View& x) {
    Scope scope(ex.recorder, "indexer");
    FATHOM_ASSIGN(weights, ex.activations->tensor({x.dim(0), m.shape.Hi}, x.format, "T,Hi"));
    FATHOM_TRY(compress(ex, m, w.keys, keys, x, positions,
                        is_quantised() ? CompressTransform::kHadamard : CompressTransform::kNone));
    return linear(ex, "weights_proj", x, w.weights_proj, weights);
  }

  Status make_queries(Exec& ex, const View& c) {
    Scope scope(ex.recorder, "indexer");
    const CompressedShape& s = m.shape;
    const int64_t T = c.dim(0);
    const bool packed = m.index_keys == Format::kMxfp4;
    Arena& arena = *ex.activations;
    FATHOM_ASSIGN(queries.q, packed ? arena.tensor({T, s.Hi, s.Di / 2}, Format::kU8, "T,Hi,Di/2")
                                    : arena.tensor({T, s.Hi, s.Di}, m.index_keys, "T,Hi,Di"));
    if (packed) {
      FATHOM_ASSIGN(queries.q_scales,
                    arena.tensor({T, s.Hi, s.Di / 32}, Format::kUe8m0, "T,Hi,Di/32"));
    }
    FATHOM_ASSIGN(queries.w, arena.tensor({T, s.Hi}, Format::kF32, "T,Hi"));
    ArenaScope temporary(arena);
    FATHOM_ASSIGN(const View q, arena.tensor({T, s.Hi * s.Di}, c.format, "T,Hi*Di"));
    FATHOM_TRY(linear(ex, "wq_b", c, w.wq_b, q));
    const double scale = 1.0 / std::sqrt(static_cast<double>(s.Di) * static_cast<double>(s.Hi));
    return launch<IndexQuery>(
        ex, "index_query",
        {.q = reshape(q, {T, s.Hi, s.Di}, "T,Hi,Di"),
         .positions = positions,
         .table = m.compressed_rope,
         .w = weights,
         .q_out = queries.q,
         .q_scales = queries.q_scales,
         .w_out = queries.w,
         .style = RopeStyle::kInterleaved,
         .channels = RopeChannels::kLast,
         .transform = is_quantised() ? IndexTransform::kHadamard : IndexTransform::kNone,
         .weight_scale = static_cast<float>(scale)});
  }
};

const View& tree_masks_of(const TokenRange& range, const CompressorRows& rows) {
  static constexpr View kNone{};
  return range.tree_masks.present() ? rows.tree_masks : kNone;
}

// `positions`: of the range. Nothing if no token sees a row.
Result<SeenRows> seen_rows(Exec& ex,
                           const CompressedContext& m,
                           CompressRatio ratio,
                           const TokenRange& range,
                           const View& positions,
                           const CompressorRows& cache) {
  SeenRows seen;
  const auto tokens = static_cast<int64_t>(ratio);
  const int64_t T = range.num_tokens;
  const int64_t rows = range.most_keys() / tokens;
  if (rows == 0) return seen;
  if (ratio == CompressRatio::kSparse && rows > m.shape.topk) {
    FATHOM_ASSIGN(seen.lengths, ex.activations->tensor({T}, Format::kI32, "T"));
    FATHOM_TRY(launch<VisibleRows>(
        ex, "visible_rows",
        {.positions = positions, .rows = seen.lengths, .tokens_per_row = tokens}));
    return seen;
  }
  FATHOM_ASSIGN(seen.slots, ex.activations->tensor({T, rows}, Format::kI32, "T,seen_rows"));
  FATHOM_TRY(launch<VisibleSlots>(ex, "visible_slots",
                                  {.positions = positions,
                                   .block_table = range.block_table,
                                   .q_offsets = range.query_offsets_view,
                                   .tree_masks = tree_masks_of(range, cache),
                                   .slots = seen.slots,
                                   .page_rows = cache.fields.values.dim(1),
                                   .tokens_per_row = tokens}));
  return seen;
}

// Slots [T, K] of the compressed rows that each token of a range attends to; absent if no token
// sees one. `queries`: of the range.
Result<View> attended_rows(Exec& ex,
                           const CompressedContext& m,
                           const TokenRange& range,
                           const SeenRows& seen,
                           const IndexQueries& queries,
                           const CompressedRows& cache) {
  if (!seen.lengths.present()) return seen.slots;
  constexpr auto kRatio = static_cast<int64_t>(CompressRatio::kSparse);
  FATHOM_ASSIGN(const View slots,
                ex.activations->tensor({range.num_tokens, m.shape.topk}, Format::kI32, "T,Kt"));
  const IndexScored scored{.queries = queries,
                           .lengths = seen.lengths,
                           .block_table = range.block_table,
                           .q_offsets = range.query_offsets_view,
                           .num_keys = range.most_keys() / kRatio,
                           .tokens_per_key = kRatio,
                           .tree_masks = tree_masks_of(range, cache.rows)};
  const IndexRows keys{
      .keys = cache.keys.fields.values, .scales = cache.keys.fields.scales, .slots = {}};
  FATHOM_TRY(choose_rows(ex, m.request_offsets, range, scored, keys, slots));
  return slots;
}

struct Projected {
  View q;   // [T, Nh, D]
  View kv;  // [T, D]
};

// Where the rows of a window are written and read.
struct WindowRows {
  CacheFields fields;
  View slots;  // [T] i64, of all tokens of the step; absent: row t has token t of the range
  View lists;  // [T, W] i32, of the tokens of a range
};

// What may run beside the way of the queries.
struct Sides {
  SideWork compressor;
  SideWork indexer;

  Status join() {
    FATHOM_TRY(compressor.join());
    return indexer.join();
  }
};

// A range of a step on its way through one layer.
struct RangeCall {
  const CompressedContext& m;
  const CompressedWeights& w;
  const CompressedRows& cache;
  const TokenRange& range;
  const Projected& p;
  const View& positions;  // of all tokens of the step
  View chosen;            // [T, K], slots of compressed rows of the range's tokens; may be absent
  View o;                 // [T, Nh, D], of all tokens of the step
  Sides& sides;           // joined before anything attends
};

enum class Written : uint8_t { kQueriesAndRows, kRows };

// Tokens [begin, begin + count) of the range: their rows, and their queries in place unless that
// has been done.
Status write_window(Exec& ex,
                    const RangeCall& c,
                    const WindowRows& to,
                    int64_t begin,
                    int64_t count,
                    Written what) {
  const int64_t first = c.range.token_begin + begin;
  View q = slice_rows(c.p.q, first, count);
  if (what == Written::kRows) {
    q.dims[1] = 0;
    q.axes = "T,0,D";
  }
  return launch<QnormRopeKvWrite>(
      ex, what == Written::kRows ? "window_write" : "qnorm_rope_kv_write",
      {.q = q,
       .kv = slice_rows(c.p.kv, first, count),
       .kv_norm = c.w.kv_norm,
       .positions = slice_rows(c.positions, first, count),
       .table = rope_of(c.m, c.w),
       .slots = to.slots.present() ? slice_rows(to.slots, first, count) : View{},
       .q_out = q,
       .values = to.fields.values,
       .rope = to.fields.rope,
       .scales = to.fields.scales,
       .eps = c.m.shape.eps});
}

Status attend_window(
    Exec& ex, const RangeCall& c, const WindowRows& from, int64_t begin, int64_t count) {
  FATHOM_TRY(c.sides.join());
  const int64_t first = c.range.token_begin + begin;
  SparseRows extra;
  if (c.chosen.present()) {
    const CacheFields& f = c.cache.rows.fields;
    extra = {.values = f.values,
             .slots = slice_rows(c.chosen, begin, count),
             .rope = f.rope,
             .scales = f.scales};
  }
  return launch<SparseMlaDecode>(ex, "attn",
                                 {.q = slice_rows(c.p.q, first, count),
                                  .rows = {.values = from.fields.values,
                                           .slots = slice_rows(from.lists, begin, count),
                                           .rope = from.fields.rope,
                                           .scales = from.fields.scales},
                                  .o = slice_rows(c.o, first, count),
                                  .extra = extra,
                                  .sink = c.w.sink,
                                  .lse = {},
                                  .scale = c.m.shape.scale,
                                  .positions = slice_rows(c.positions, first, count),
                                  .table = rope_of(c.m, c.w)});
}

// `from`: whose rows are listed; absent, rows of the range's own tokens. `positions`: of the range.
Result<View> window_lists(Exec& ex,
                          const CompressedContext& m,
                          const TokenRange& range,
                          const View& positions,
                          Op op,
                          const View& from,
                          int64_t ring_rows) {
  const int64_t T = range.num_tokens;
  FATHOM_ASSIGN(const View lists, ex.activations->tensor({T, m.shape.W}, Format::kI32, "T,W"));
  FATHOM_TRY(launch<RingSlots>(ex, op,
                               {.positions = positions,
                                .request_slots = from,
                                .q_offsets = range.query_offsets_view,
                                .tree_masks = from.present() ? range.tree_masks : View{},
                                .slots = lists,
                                .ring_rows = ring_rows}));
  return lists;
}

// Memory of a step for rows as those of `like`; they begin at multiples of sixteen bytes.
Result<View> rows_like(Exec& ex, const View& like, int64_t rows, const char* axes) {
  if (!like.present()) return View{};
  const int64_t element = element_bytes(like.format);
  const int64_t width = align_up<int64_t>(like.dim(2) * element, 16) / element;
  FATHOM_ASSIGN(View v, ex.activations->tensor({1, rows, width}, like.format, axes));
  v.dims[2] = like.dim(2);
  return v;
}

Result<CacheFields> fields_like(Exec& ex, const CacheFields& like, int64_t rows) {
  const bool fp4 = like.values.format == Format::kU8;
  const bool coded = like.scales.present();
  const bool one_scale = coded && like.scales.dim(2) == 1;
  CacheFields own;
  FATHOM_ASSIGN(own.values, rows_like(ex, like.values, rows,
                                      fp4     ? "1,step_rows,Dn/2"
                                      : coded ? "1,step_rows,Dn"
                                              : "1,step_rows,D"));
  FATHOM_ASSIGN(own.rope, rows_like(ex, like.rope, rows, "1,step_rows,Dr"));
  FATHOM_ASSIGN(own.scales, rows_like(ex, like.scales, rows,
                                      one_scale ? "1,step_rows,1"
                                      : fp4     ? "1,step_rows,Dn/16"
                                                : "1,step_rows,Dn/64"));
  return own;
}

// A range with a request that has more tokens than its ring has room for while they attend. All of
// their rows stand side by side for as long as that takes, with the bits that a ring would have.
// Tokens that look behind the step, the first W - 1 of a request, attend to the ring, in pieces
// that it has room for; the others to what is side by side. In the end the newest rows go to the
// ring.
Status attend_side_by_side(Exec& ex, const RangeCall& c, WindowRows ring, int64_t most) {
  const TokenRange& range = c.range;
  const CacheFields& like = c.cache.window;
  const int64_t T = range.num_tokens;
  WindowRows own;
  FATHOM_ASSIGN(own.fields, fields_like(ex, like, T));
  FATHOM_ASSIGN(own.lists,
                window_lists(ex, c.m, range, slice_rows(c.positions, range.token_begin, T),
                             "step_slots", {}, 1));
  FATHOM_TRY(write_window(ex, c, own, 0, T, Written::kQueriesAndRows));
  const auto look_behind = [&](const RangeRequest& r) {
    return r.keys > r.count ? std::min(r.count, c.m.shape.W - 1) : 0;
  };
  bool all_new = true;
  for (int64_t b = 0; b < range.num_requests(); ++b)
    all_new = all_new && look_behind(request_of(range, b)) == 0;
  if (all_new) FATHOM_TRY(attend_window(ex, c, own, 0, T));
  return each_request(ex, range, [&](const RangeRequest& r) -> Status {
    const int64_t behind = look_behind(r);
    for (int64_t at = 0; at < behind; at += most) {
      const int64_t count = std::min(most, behind - at);
      FATHOM_TRY(write_window(ex, c, ring, r.begin + at, count, Written::kRows));
      FATHOM_TRY(attend_window(ex, c, ring, r.begin + at, count));
    }
    if (!all_new && behind < r.count)
      FATHOM_TRY(attend_window(ex, c, own, r.begin + behind, r.count - behind));
    const int64_t newest = std::min(r.count - behind, like.values.dim(1));
    if (newest == 0) return {};
    return write_window(ex, c, ring, r.begin + r.count - newest, newest, Written::kRows);
  });
}

// By way of the ring where it holds the window of each token until all have attended; `lists` has
// its slots.
Status attend_range(Exec& ex, const RangeCall& c, const View& lists) {
  const TokenRange& range = c.range;
  const WindowRows ring{.fields = c.cache.window, .slots = c.cache.window_slots, .lists = lists};
  const int64_t most = ring.fields.values.dim(1) - c.m.shape.W + 1;
  int64_t longest = 0;
  for (int64_t b = 0; b < range.num_requests(); ++b)
    longest = std::max(longest, request_of(range, b).count);
  if (longest > most) return attend_side_by_side(ex, c, ring, most);
  FATHOM_TRY(write_window(ex, c, ring, 0, range.num_tokens, Written::kQueriesAndRows));
  return attend_window(ex, c, ring, 0, range.num_tokens);
}

}  // namespace

Status add_lists(Exec& ex,
                 const CompressedContext& m,
                 CompressRatio ratio,
                 const AttentionBatch& batch,
                 const TokenRange& range,
                 const CompressedRows& cache,
                 RangeLists& lists) {
  if (range.num_tokens == 0) return {};
  const View positions = slice_rows(batch.positions, range.token_begin, range.num_tokens);
  if (!lists.window.present()) {
    FATHOM_ASSIGN(lists.window, window_lists(ex, m, range, positions, "window_slots",
                                             range.request_slots, cache.window.values.dim(1)));
  }
  if (ratio == CompressRatio::kNone) return {};
  std::optional<SeenRows>& seen = ratio == CompressRatio::kSparse ? lists.sparse : lists.heavy;
  if (seen) return {};
  FATHOM_ASSIGN(seen, seen_rows(ex, m, ratio, range, positions, cache.rows));
  return {};
}

Status compressed_attend(Exec& ex,
                         const CompressedContext& m,
                         const CompressedWeights& w,
                         const AttentionBatch& batch,
                         const CompressedRows& cache,
                         const RangeLists& decode_lists,
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

  const bool beside = indexes_beside(batch);
  Sides sides{.compressor = SideWork(ex, SideNumber::kFirst, beside),
              .indexer = SideWork(ex, SideNumber::kSecond, beside)};
  Indexer indexer{
      .m = m, .w = w.indexer, .positions = batch.positions, .queries = {}, .weights = {}};
  if (w.ratio != CompressRatio::kNone) {
    FATHOM_TRY(sides.compressor.run([&](Exec& side) {
      return compress(side, m, w.rows, cache.rows, x, batch.positions, CompressTransform::kNone);
    }));
  }
  if (w.ratio == CompressRatio::kSparse) {
    FATHOM_TRY(
        sides.indexer.run([&](Exec& side) { return indexer.write_keys(side, cache.keys, x); }));
  }

  const std::array<Op, 2> parts = {Op("wq_a"), Op("wkv")};
  FATHOM_ASSIGN(const View q_kv, arena.tensor({T, s.Lq + s.D}, x.format, "T,Lq+D"));
  FATHOM_TRY(linear_rows_of(ex, "wq_kv_a", parts, x, w.q_kv_a, q_kv, LinearUse::kLatentDown));
  FATHOM_ASSIGN(const View c, arena.tensor({T, s.Lq}, x.format, "T,Lq"));
  FATHOM_TRY(rms_norm(ex, "q_norm", slice_cols(q_kv, 0, s.Lq, "T,Lq"), w.q_norm, c, s.eps));

  View chosen;  // of the decode range, where that is all of the step
  const auto choose = [&](Exec& side) -> Status {
    FATHOM_TRY(indexer.make_queries(side, c));
    if (batch.prefill.num_tokens > 0) return {};
    FATHOM_ASSIGN(
        chosen, attended_rows(side, m, batch.decode, *decode_lists.sparse, indexer.queries, cache));
    return {};
  };
  if (w.ratio == CompressRatio::kSparse) FATHOM_TRY(sides.indexer.run(choose));
  FATHOM_ASSIGN(const View q, arena.tensor({T, s.Nh * s.D}, x.format, "T,Nh*D"));
  FATHOM_TRY(linear(ex, "wq_b", c, w.q_b, q));
  const Projected p{.q = reshape(q, {T, s.Nh, s.D}, "T,Nh,D"),
                    .kv = slice_cols(q_kv, s.Lq, s.D, "T,D")};

  FATHOM_ASSIGN(const View o, arena.tensor({T, s.Nh, s.D}, x.format, "T,Nh,D"));
  const auto attend = [&](const TokenRange& range, bool decode) -> Status {
    ArenaScope of_range(arena);
    RangeLists own;
    if (!decode) FATHOM_TRY(add_lists(ex, m, w.ratio, batch, range, cache, own));
    const RangeLists& lists = decode ? decode_lists : own;
    View rows = chosen;
    if (!rows.present() && w.ratio != CompressRatio::kNone) {
      const SeenRows& seen = w.ratio == CompressRatio::kSparse ? *lists.sparse : *lists.heavy;
      FATHOM_ASSIGN(
          rows,
          attended_rows(ex, m, range, seen,
                        rows_of(indexer.queries, range.token_begin, range.num_tokens), cache));
    }
    FATHOM_TRY(attend_range(ex,
                            {.m = m,
                             .w = w,
                             .cache = cache,
                             .range = range,
                             .p = p,
                             .positions = batch.positions,
                             .chosen = rows,
                             .o = o,
                             .sides = sides},
                            lists.window));
    if (w.ratio == CompressRatio::kSparse && rows.present())
      tap(probe, "indexer.slots", layer, rows);
    return {};
  };
  FATHOM_TRY(each_range(ex, batch, attend));
  FATHOM_ASSIGN(const View o_a, arena.tensor({T, s.Go, s.Lo}, x.format, "T,Go,Lo"));
  FATHOM_TRY(group_rows_linear(ex, "wo_a", reshape(o, {T, s.Go, s.Nh * s.D / s.Go}, "T,Go,Hg*D"),
                               w.o_a, "Go,Lo,Hg*D", o_a));
  return linear(ex, "wo_b", reshape(o_a, {T, s.Go * s.Lo}, "T,Go*Lo"), w.o_b, y);
}

}  // namespace fathom
