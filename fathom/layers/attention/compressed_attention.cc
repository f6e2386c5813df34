#include "fathom/layers/attention/compressed_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "fathom/base/checked_math.h"
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
  const View tree_masks = range.tree_masks.present() ? cache.rows.tree_masks : View{};
  Arena& arena = *ex.activations;
  FATHOM_ASSIGN(const View slots, arena.tensor({T, chosen ? m.shape.topk : rows}, Format::kI32,
                                               chosen ? "T,Kt" : "T,seen_rows"));
  if (!chosen) {
    FATHOM_TRY(launch<VisibleSlots>(ex, "visible_slots",
                                    {.positions = positions,
                                     .block_table = range.block_table,
                                     .q_offsets = range.query_offsets_view,
                                     .tree_masks = tree_masks,
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
                           .tokens_per_key = ratio,
                           .tree_masks = tree_masks};
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
                                  .scale = c.m.shape.scale});
}

// `from`: whose rows are listed; absent, rows of the range's own tokens.
Result<View> window_lists(
    Exec& ex, const RangeCall& c, Op op, const View& from, int64_t ring_rows) {
  const int64_t T = c.range.num_tokens;
  FATHOM_ASSIGN(const View lists, ex.activations->tensor({T, c.m.shape.W}, Format::kI32, "T,W"));
  FATHOM_TRY(launch<RingSlots>(ex, op,
                               {.positions = slice_rows(c.positions, c.range.token_begin, T),
                                .request_slots = from,
                                .q_offsets = c.range.query_offsets_view,
                                .tree_masks = from.present() ? c.range.tree_masks : View{},
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
  FATHOM_ASSIGN(own.lists, window_lists(ex, c, "step_slots", {}, 1));
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

// By way of the ring where it holds the window of each token until all have attended. Its lists are
// made in any case: the memory of a step must not depend on where its prompts begin.
Status attend_range(
    Exec& ex, RangeCall c, const IndexQueries& queries, const Probe* probe, int layer) {
  ArenaScope arena(*ex.activations);
  const TokenRange& range = c.range;
  const int64_t begin = range.token_begin;
  const int64_t T = range.num_tokens;
  WindowRows ring{.fields = c.cache.window, .slots = c.cache.window_slots, .lists = {}};
  const int64_t ring_rows = ring.fields.values.dim(1);
  FATHOM_ASSIGN(ring.lists, window_lists(ex, c, "window_slots", range.request_slots, ring_rows));
  FATHOM_ASSIGN(c.chosen, compressed_slots(ex, c.m, c.w, range, slice_rows(c.positions, begin, T),
                                           rows_of(queries, begin, T), c.cache));
  if (c.w.ratio == CompressRatio::kSparse && c.chosen.present())
    tap(probe, "indexer.slots", layer, c.chosen);
  const int64_t most = ring_rows - c.m.shape.W + 1;
  int64_t longest = 0;
  for (int64_t b = 0; b < range.num_requests(); ++b)
    longest = std::max(longest, request_of(range, b).count);
  if (longest > most) return attend_side_by_side(ex, c, ring, most);
  FATHOM_TRY(write_window(ex, c, ring, 0, T, Written::kQueriesAndRows));
  return attend_window(ex, c, ring, 0, T);
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
    return attend_range(ex,
                        {.m = m,
                         .w = w,
                         .cache = cache,
                         .range = range,
                         .p = p,
                         .positions = batch.positions,
                         .chosen = {},
                         .o = o},
                        queries, probe, layer);
  }));
  FATHOM_TRY(launch<InverseRope>(ex, "inverse_rope",
                                 {.o = o, .positions = batch.positions, .table = rope_of(m, w)}));
  FATHOM_ASSIGN(const View o_a, arena.tensor({T, s.Go, s.Lo}, x.format, "T,Go,Lo"));
  FATHOM_TRY(group_rows_linear(ex, "wo_a", reshape(o, {T, s.Go, s.Nh * s.D / s.Go}, "T,Go,Hg*D"),
                               w.o_a, "Go,Lo,Hg*D", o_a));
  return linear(ex, "wo_b", reshape(o_a, {T, s.Go * s.Lo}, "T,Go*Lo"), w.o_b, y);
}

}  // namespace fathom
