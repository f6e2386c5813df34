#include <array>

#include "fathom/kernels/attn/kv_write/kv_write.h"
#include "fathom/kernels/attn/mla_sparse_kv_write/mla_sparse_kv_write.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/layers/attention/each_range.h"
#include "fathom/layers/attention/mla.h"
#include "fathom/layers/linear.h"
#include "fathom/layers/norm.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

// First row that fits wins. A cache in another format than the activations rounds the keys, so the
// form that does not read them back would give a prefix other bits than the one that does.
constexpr AttentionRow kAttentionRows[] = {
    {AttentionForm::kFusedRope, "fused_rope", "decode, when the options ask for it",
     [](const AttentionCall& c, const AttentionOptions& o) {
       return c.decode && o.fused_rope && !o.always_absorbed;
     }},
    {AttentionForm::kAbsorbed, "absorbed", "decode; every phase when the options fix the form",
     [](const AttentionCall& c, const AttentionOptions& o) {
       return c.decode || o.always_absorbed;
     }},
    {AttentionForm::kMha, "mha",
     "prefill without prefix, at most one chunk of tokens, cache in the format of the activations",
     [](const AttentionCall& c, const AttentionOptions& o) {
       return !c.has_prefix && c.exact_cache && c.num_tokens <= o.prefill_chunk;
     }},
    {AttentionForm::kChunked, "chunked", "every other prefill",
     [](const AttentionCall&, const AttentionOptions&) { return true; }},
};

bool has_prefix(const TokenRange& range) {
  for (size_t r = 0; r < range.kv_lens.size(); ++r) {
    if (range.kv_lens[r] > range.query_offsets[r + 1] - range.query_offsets[r]) return true;
  }
  return false;
}

// The cache as tokens [begin, begin + count) of the step write it.
CacheRows written_by(const CacheRows& cache, int64_t begin, int64_t count) {
  return {.rows = cache.rows, .slots = slice_rows(cache.slots, begin, count)};
}

AttentionForm form_of(const MlaContext& m,
                      const TokenRange& range,
                      bool decode,
                      const CacheRows& cache,
                      const View& x) {
  const AttentionCall call = decode ? AttentionCall{.decode = true}
                                    : AttentionCall{.has_prefix = has_prefix(range),
                                                    .exact_cache = cache.rows.format == x.format,
                                                    .num_tokens = range.num_tokens};
  return kAttentionRows[choose_attention(call, m.options)].form;
}

}  // namespace

std::span<const AttentionRow> attention_rows() {
  return kAttentionRows;
}

SelectionRow attention_row(AttentionForm form) {
  SelectionRow row{.index = 0};
  while (kAttentionRows[row.index].form != form)
    ++row.index;
  return row;
}

int choose_attention(const AttentionCall& call, const AttentionOptions& options) {
  int row = 0;
  while (!kAttentionRows[row].fits(call, options))
    ++row;
  return row;
}

std::string explain_attention(const AttentionCall& call, const AttentionOptions& options) {
  const int chosen = choose_attention(call, options);
  std::string out;
  int index = 0;
  for (const AttentionRow& r : kAttentionRows) {
    const std::string_view verdict = index == chosen  ? "chosen"
                                     : index > chosen ? "an earlier row fits"
                                                      : "does not apply";
    str_append(out, str_cat("row ", index, "  ", r.name, " (", r.when, "): ", verdict, "\n"));
    ++index;
  }
  return out;
}

MlaProjected rows_of(const MlaProjected& p, int64_t begin, int64_t count) {
  return {.q_a = p.q_a.present() ? slice_rows(p.q_a, begin, count) : View{},
          .q = slice_rows(p.q, begin, count),
          .c = slice_rows(p.c, begin, count),
          .k_pe = slice_rows(p.k_pe, begin, count)};
}

Status check_prefill_chunk(const AttentionOptions& options, const CacheRows& cache) {
  if (options.prefill_chunk >= 1 && options.prefill_chunk % cache.rows.dim(1) == 0) return {};
  return invalid_argument(str_cat("prefill chunk is ", options.prefill_chunk,
                                  " keys, expected a multiple of the page size ",
                                  cache.rows.dim(1)));
}

Status mla_attend_range(Exec& ex,
                        const MlaContext& m,
                        const MlaWeights& w,
                        const AttentionBatch& batch,
                        const TokenRange& range,
                        bool decode,
                        const MlaProjected& all,
                        const CacheRows& cache,
                        const View& o_all) {
  if (range.num_tokens == 0) return {};
  ArenaScope arena(*ex.activations);
  const MlaProjected p = rows_of(all, range.token_begin, range.num_tokens);
  const View o = slice_rows(o_all, range.token_begin, range.num_tokens);
  const AttentionForm form = form_of(m, range, decode, cache, p.q);
  switch (form) {
    case AttentionForm::kMha:
      return mla_prefill_mha(ex, m, w, range, p, o);
    case AttentionForm::kChunked:
      return mla_prefill_chunked(ex, m, w, range, p, cache.rows, o);
    case AttentionForm::kAbsorbed:
    case AttentionForm::kFusedRope:
      break;
  }
  return mla_decode_absorbed(ex, m, w, range, form, p,
                             slice_rows(batch.positions, range.token_begin, range.num_tokens),
                             written_by(cache, range.token_begin, range.num_tokens), o);
}

// DeepSeek-V2 report, eq. 9 to 15: down to the latents, normalise, up to the queries.
Result<MlaProjected> mla_project(Exec& ex,
                                 const MlaContext& m,
                                 const MlaWeights& w,
                                 const View& x) {
  FATHOM_ASSIGN(MlaProjected p, mla_latents(ex, m, w, x));
  FATHOM_TRY(mla_queries(ex, m, w, p));
  return p;
}

Result<MlaProjected> mla_latents(Exec& ex,
                                 const MlaContext& m,
                                 const MlaWeights& w,
                                 const View& x) {
  Scope scope(ex.recorder, "project");
  const MlaShape& s = m.shape;
  const int64_t T = x.dim(0);
  const bool latent_q = s.Lq > 0;
  const int64_t first = latent_q ? s.Lq : s.Nh * s.Dq();
  Arena& arena = *ex.activations;

  const std::array<Op, 2> parts = {latent_q ? Op("q_a_proj") : Op("q_proj"),
                                   Op("kv_a_proj_with_mqa")};
  FATHOM_ASSIGN(const View a, arena.tensor({T, first + s.cache_width()}, x.format,
                                           latent_q ? "T,Lq+Lkv+Dr" : "T,Nh*Dq+Lkv+Dr"));
  FATHOM_TRY(linear_rows_of(ex, "fused_qkv_a_proj_with_mqa", parts, x, w.q_kv_a, a,
                            LinearUse::kLatentDown));
  MlaProjected p{.q_a = {},
                 .q = slice_cols(a, 0, first, latent_q ? "T,Lq" : "T,Nh*Dq"),
                 .c = slice_cols(a, first, s.Lkv, "T,Lkv"),
                 .k_pe = slice_cols(a, first + s.Lkv, s.Dr, "T,Dr")};
  if (latent_q) {
    FATHOM_ASSIGN(p.q_a, arena.tensor({T, s.Lq}, x.format, "T,Lq"));
    FATHOM_TRY(rms_norm(ex, "q_a_layernorm", p.q, w.q_a_norm, p.q_a, kLatentNormEps));
  }
  return p;
}

Status mla_queries(Exec& ex, const MlaContext& m, const MlaWeights& w, MlaProjected& p) {
  Scope scope(ex.recorder, "project");
  const MlaShape& s = m.shape;
  const int64_t T = p.c.dim(0);
  Arena& arena = *ex.activations;
  if (p.q_a.present()) {
    FATHOM_ASSIGN(p.q, arena.tensor({T, s.Nh * s.Dq()}, p.q_a.format, "T,Nh*Dq"));
    FATHOM_TRY(linear(ex, "q_b_proj", p.q_a, w.q_b, p.q));
  }
  p.q = reshape(p.q, {T, s.Nh, s.Dq()}, "T,Nh,Dq");
  // Only the latent is normalised; the rotary key is cached as it is projected.
  FATHOM_ASSIGN(const View c, arena.tensor({T, s.Lkv}, p.c.format, "T,Lkv"));
  FATHOM_TRY(rms_norm(ex, "kv_a_layernorm", p.c, w.kv_a_norm, c, kLatentNormEps));
  p.c = c;
  return {};
}

Status mla_rotate_and_write(Exec& ex,
                            const MlaContext& m,
                            const MlaProjected& p,
                            const View& positions,
                            const CacheRows& cache) {
  FATHOM_TRY(launch<RopeInplace>(ex, "rotary_emb",
                                 {.q = slice_cols(p.q, m.shape.Dn, m.shape.Dr, "T,Nh,Dr"),
                                  .k = reshape(p.k_pe, {p.k_pe.dim(0), 1, m.shape.Dr}, "T,1,Dr"),
                                  .positions = positions,
                                  .table = m.rope_table,
                                  .style = m.shape.rope_style}));
  if (cache.scales.present()) {
    return launch<MlaSparseKvWrite>(ex, "kv_write",
                                    {.c = p.c,
                                     .k_pe = p.k_pe,
                                     .slots = cache.slots,
                                     .values = cache.rows,
                                     .rope = cache.rope,
                                     .scales = cache.scales});
  }
  return launch<KvWrite>(ex, "kv_write",
                         {.c = p.c,
                          .k_pe = p.k_pe,
                          .slots = cache.slots,
                          .cache = cache.rows,
                          .scale = m.options.kv_scale});
}

Status mla_attend(Exec& ex,
                  const MlaContext& m,
                  const MlaWeights& w,
                  const AttentionBatch& batch,
                  const CacheRows& cache,
                  const View& x,
                  const View& y) {
  const int64_t T = x.dim(0);
  FATHOM_CHECK(T == batch.num_tokens(), str_cat(T, " tokens, ranges of ", batch.num_tokens()));
  FATHOM_TRY(check_prefill_chunk(m.options, cache));
  Scope scope(ex.recorder, "self_attn");
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const MlaProjected p, mla_project(ex, m, w, x));
  // The fused form rotates and writes the decode tokens itself; they follow the prefill tokens.
  const bool fused = form_of(m, batch.decode, true, cache, x) == AttentionForm::kFusedRope;
  const int64_t rotated = fused ? batch.prefill.num_tokens : T;
  if (rotated > 0 || !fused) {
    FATHOM_TRY(mla_rotate_and_write(ex, m, rows_of(p, 0, rotated),
                                    slice_rows(batch.positions, 0, rotated),
                                    written_by(cache, 0, rotated)));
  }

  FATHOM_ASSIGN(const View o,
                ex.activations->tensor({T, m.shape.Nh * m.shape.Dv}, x.format, "T,Nh*Dv"));
  const View heads = reshape(o, {T, m.shape.Nh, m.shape.Dv}, "T,Nh,Dv");
  FATHOM_TRY(each_range(ex, batch, [&](const TokenRange& range, bool decode) {
    return mla_attend_range(ex, m, w, batch, range, decode, p, cache, heads);
  }));
  return linear(ex, "o_proj", o, w.o, y);
}

}  // namespace fathom
