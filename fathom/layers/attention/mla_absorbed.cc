// The absorbed form of MLA: attention over the latents themselves. Since k_n = W_UK c and
// v = W_UV c, a head's score q_n . k_n is (W_UK^T q_n) . c, and its output W_UV (sum_j p_j c_j).
// DeepSeek-V2 report, section 2.1.2.
#include "fathom/kernels/attn/mla_concat/mla_concat.h"
#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant.h"
#include "fathom/layers/attention/each_request.h"
#include "fathom/layers/attention/mla.h"
#include "fathom/layers/linear.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

// Queries per request if all have the same number, else 0.
int64_t uniform_queries(const TokenRange& range) {
  const int64_t queries = range.query_offsets[1] - range.query_offsets[0];
  for (size_t i = 0; i < range.kv_lens.size(); ++i) {
    if (range.query_offsets[i + 1] - range.query_offsets[i] != queries) return 0;
  }
  return queries;
}

View split_requests(const View& v, int64_t num_requests, const char* axes) {
  return reshape(v, {num_requests, v.dim(0) / num_requests, v.dim(1), v.dim(2)}, axes);
}

// Requests [first, first + count) of the range, `queries` tokens each, which are the range's from
// token `begin` on; q and o hold their rows.
Status attend(Exec& ex,
              const MlaContext& m,
              const TokenRange& range,
              AttentionForm form,
              int64_t first,
              int64_t count,
              int64_t queries,
              int64_t begin,
              const View& q,
              const View& cache,
              const View& o) {
  MlaDecode::Args args{.q = q,
                       .cache = cache,
                       .block_table = slice_rows(range.block_table, first, count),
                       .kv_lens = slice_rows(range.kv_lens_view, first, count),
                       .o = o,
                       .lse = {},
                       .scale = m.shape.softmax_scale,
                       .kv_scale = m.options.kv_scale};
  const SelectionRow row = attention_row(form);
  const bool trees = range.tree_masks.present();
  if (queries == 1 && !trees) return launch<MlaDecode>(ex, "attn_mqa", args, row);
  args.q = split_requests(q, count, "B,Q,Nh,Lkv+Dr");
  args.o = split_requests(o, count, "B,Q,Nh,Lkv");
  if (trees) {
    args.tree_masks =
        reshape(slice_rows(range.tree_masks, begin, count * queries), {count, queries}, "B,Q");
    args.tree_begins = slice_rows(range.tree_begins, first, count);
  }
  return launch<MlaDecodeMulti>(ex, "attn_mqa", args, row);
}

}  // namespace

Status mla_decode_absorbed(Exec& ex,
                           const MlaContext& m,
                           const MlaWeights& w,
                           const TokenRange& range,
                           AttentionForm form,
                           const MlaProjected& p,
                           const View& positions,
                           const CacheRows& cache,
                           const View& o) {
  Scope scope(ex.recorder, form == AttentionForm::kFusedRope ? "fused_rope" : "absorbed");
  const MlaShape& s = m.shape;
  const int64_t T = range.num_tokens;
  const Format format = p.q.format;
  const View q_nope = slice_cols(p.q, 0, s.Dn, "T,Nh,Dn");
  const View q_pe = slice_cols(p.q, s.Dn, s.Dr, "T,Nh,Dr");

  FATHOM_ASSIGN(const View q_lat, ex.activations->tensor({T, s.Nh, s.Lkv}, format, "T,Nh,Lkv"));
  FATHOM_ASSIGN(const View q,
                ex.activations->tensor({T, s.Nh, s.cache_width()}, format, "T,Nh,Lkv+Dr"));
  FATHOM_TRY(head_linear(ex, "w_kc", q_nope, w.w_kc, q_lat));
  if (form == AttentionForm::kFusedRope) {
    FATHOM_TRY(launch<MlaRopeWrite>(ex, "rotary_emb",
                                    {.q_lat = q_lat,
                                     .q_pe = q_pe,
                                     .c = p.c,
                                     .k_pe = p.k_pe,
                                     .positions = positions,
                                     .table = m.rope_table,
                                     .slots = cache.slots,
                                     .q = q,
                                     .cache = cache.rows,
                                     .kv_scale = m.options.kv_scale,
                                     .style = s.rope_style}));
  } else {
    FATHOM_TRY(
        launch<ConcatAbsorbedQ>(ex, "concat_mla_absorb_q", {.q_lat = q_lat, .q_pe = q_pe, .q = q}));
  }

  FATHOM_ASSIGN(const View o_lat, ex.activations->tensor({T, s.Nh, s.Lkv}, format, "T,Nh,Lkv"));
  if (const int64_t queries = uniform_queries(range); queries > 0) {
    FATHOM_TRY(
        attend(ex, m, range, form, 0, range.num_requests(), queries, 0, q, cache.rows, o_lat));
  } else {
    FATHOM_TRY(each_request(ex, range, [&](const RangeRequest& r) {
      return attend(ex, m, range, form, r.index, 1, r.count, r.begin,
                    slice_rows(q, r.begin, r.count), cache.rows,
                    slice_rows(o_lat, r.begin, r.count));
    }));
  }
  return head_linear(ex, "w_vc", o_lat, w.w_vc, o);
}

}  // namespace fathom
