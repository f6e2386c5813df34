#include "fathom/layers/attention/mha.h"

#include <array>

#include "fathom/kernels/attn/kv_write/kv_write.h"
#include "fathom/kernels/attn/paged_attention/paged_attention.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/layers/attention/each_range.h"
#include "fathom/layers/linear.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

struct MhaProjected {
  View q;   // [T, Nh, D]
  View kv;  // [T, 2*Nk*D], as a row of the cache has them
};

Result<MhaProjected> project(Exec& ex, const MhaShape& s, const MhaWeights& w, const View& x) {
  Scope scope(ex.recorder, "project");
  const int64_t T = x.dim(0);
  Arena& arena = *ex.activations;
  FATHOM_ASSIGN(const View q, arena.tensor({T, s.Nh * s.D}, x.format, "T,Nh*D"));
  FATHOM_TRY(linear(ex, "q_proj", x, w.q, q));
  FATHOM_ASSIGN(const View kv, arena.tensor({T, 2 * s.Nk * s.D}, x.format, "T,2*Nk*D"));
  const std::array<Op, 2> parts = {Op("k_proj"), Op("v_proj")};
  FATHOM_TRY(linear_rows_of(ex, "kv_proj", parts, x, w.kv, kv));
  return MhaProjected{.q = reshape(q, {T, s.Nh, s.D}, "T,Nh,D"), .kv = kv};
}

// Columns [begin, begin + Nk*D) of the rows of the cache, by head.
View heads_of(const MhaShape& s, const View& rows, int64_t begin) {
  return reshape(slice_cols(rows, begin, s.Nk * s.D), {rows.dim(0), rows.dim(1), s.Nk, s.D},
                 "pages,page_size,Nk,D");
}

}  // namespace

Status mha_attend(Exec& ex,
                  const MhaContext& m,
                  const MhaWeights& w,
                  const AttentionBatch& batch,
                  const CacheRows& cache,
                  const View& x,
                  const View& y) {
  const int64_t T = x.dim(0);
  FATHOM_CHECK(T == batch.num_tokens(), str_cat(T, " tokens, ranges of ", batch.num_tokens()));
  Scope scope(ex.recorder, "self_attn");
  ArenaScope arena(*ex.activations);
  const MhaShape& s = m.shape;
  const int64_t width = s.Nk * s.D;
  FATHOM_ASSIGN(const MhaProjected p, project(ex, s, w, x));
  const View k = slice_cols(p.kv, 0, width, "T,Nk*D");
  FATHOM_TRY(launch<RopeInplace>(ex, "rotary_emb",
                                 {.q = p.q,
                                  .k = reshape(k, {T, s.Nk, s.D}, "T,Nk,D"),
                                  .positions = batch.positions,
                                  .table = m.rope_table,
                                  .style = s.rope_style}));
  // The kernel of latents writes two parts of a row; here they are the keys and the values.
  FATHOM_TRY(launch<KvWrite>(ex, "kv_write",
                             {.c = k,
                              .k_pe = slice_cols(p.kv, width, width, "T,Nk*D"),
                              .slots = cache.slots,
                              .cache = cache.rows,
                              .scale = m.kv_scale}));

  FATHOM_ASSIGN(const View o, ex.activations->tensor({T, s.Nh * s.D}, x.format, "T,Nh*D"));
  const View heads = reshape(o, {T, s.Nh, s.D}, "T,Nh,D");
  FATHOM_TRY(each_range(ex, batch, [&](const TokenRange& range, bool) {
    return launch<PagedAttention>(ex, "attn_mha",
                                  {.q = slice_rows(p.q, range.token_begin, range.num_tokens),
                                   .k = heads_of(s, cache.rows, 0),
                                   .v = heads_of(s, cache.rows, width),
                                   .q_offsets = range.query_offsets_view,
                                   .block_table = range.block_table,
                                   .kv_lens = range.kv_lens_view,
                                   .o = slice_rows(heads, range.token_begin, range.num_tokens),
                                   .scale = s.softmax_scale,
                                   .kv_scale = m.kv_scale});
  }));
  return linear(ex, "o_proj", o, w.o, y);
}

}  // namespace fathom
