// Multi-token prediction: the draft layer of DeepSeek-V4 (inference/model.py, MTPBlock).
//
//   e     = RMSNorm(Embed(t_{i+1}); enorm)
//   X'_j  = W_e e + W_h RMSNorm(X_ij; hnorm)      X_i: the main model's streams, before they are
//   read X''   = Layer(X')                             a window alone, its own rows, position of
//   X_i logits for t_{i+2} = W_head RMSNorm(read(X''); norm)
//
// Embedding and head are the main model's. For a further token X'' takes the place of X.
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/mhc/mhc_post/mhc_post.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/layers/embedding.h"
#include "fathom/layers/linear.h"
#include "fathom/layers/norm.h"
#include "fathom/layers/phase_scope.h"
#include "fathom/models/deepseek/v4/deepseek_v4.h"
#include "fathom/trace/scope.h"

namespace fathom {

Status DeepseekV4::declare_nextn(WeightPlan& plan, const V4Names& name) {
  using enum WeightRole;
  const std::string p = "mtp.0.";
  V4NextN& w = nextn_;
  plan.set_draft(true);
  FATHOM_TRY(plan.vector(name(p + "enorm.weight"), "H", kNorm, &w.enorm));
  FATHOM_TRY(plan.vector(name(p + "hnorm.weight"), "H", kNorm, &w.hnorm));
  FATHOM_TRY(plan.matrix(name(p + "e_proj.weight"), "H,H", kDraft, &w.e_proj));
  FATHOM_TRY(plan.matrix(name(p + "h_proj.weight"), "H,H", kDraft, &w.h_proj));
  FATHOM_TRY(declare_layer(plan, name, p, static_cast<int>(config_.num_hidden_layers), w.layer));
  FATHOM_TRY(declare_streams(plan, name, p + "hc_head_", true, w.hc_head));
  FATHOM_TRY(plan.vector(name(p + "norm.weight"), "H", kNorm, &w.norm));
  plan.set_draft(false);
  return {};
}

// The two terms of every stream lie side by side until they are added.
Status DeepseekV4::nextn_streams(Exec& ex,
                                 const Batch& batch,
                                 const View& hidden,
                                 const View& streams) const {
  const int64_t T = batch.num_tokens();
  const int64_t H = config_.hidden_size;
  const int64_t n = config_.hc_mult;
  const Format format = options_.activations;
  Arena& arena = *ex.activations;
  ArenaScope temporary(arena);
  FATHOM_ASSIGN(const View terms, arena.tensor({T * n, 2 * H}, format, "T*n,2*H"));
  FATHOM_ASSIGN(const View e, arena.tensor({T, H}, format, "T,H"));
  FATHOM_ASSIGN(const View e_out, arena.tensor({T, H}, format, "T,H"));
  FATHOM_ASSIGN(const View h, arena.tensor({T * n, H}, format, "T*n,H"));
  FATHOM_TRY(embed_tokens(ex, batch.token_ids, embed_, e));
  FATHOM_TRY(rms_norm(ex, "enorm", e, nextn_.enorm, e, eps_));
  FATHOM_TRY(linear(ex, "e_proj", e, nextn_.e_proj, e_out));
  FATHOM_ASSIGN(const View read,
                select_states(ex, hidden, batch.state_rows, reshape(h, {T, n * H}, "T,n*H")));
  FATHOM_TRY(rms_norm(ex, "hnorm", reshape(read, {T * n, H}, "T*n,H"), nextn_.hnorm, h, eps_));
  FATHOM_TRY(linear(ex, "h_proj", h, nextn_.h_proj, slice_cols(terms, H, H, "T*n,H")));
  View first = reshape(terms, {T, n, 2 * H}, "T,n,2*H");
  first.dims[2] = H;
  first.axes = "T,n,H";
  FATHOM_TRY(launch<MhcExpand>(ex, "hc_expand", {.x = e_out, .streams = first}));
  return launch<TopkSum>(
      ex, "add_terms",
      {.x = reshape(terms, {T * n, 2, H}, "T*n,2,H"), .y = reshape(streams, {T * n, H}, "T*n,H")});
}

Status DeepseekV4::draft(Exec& ex, const Batch& batch, const View& hidden, ForwardOut& out) const {
  if (!has_draft_) return unsupported("this model has no draft layer");
  const bool fits = hidden.rank == 2 && hidden.dim(1) == state_width() &&
                    (batch.state_rows.present() || hidden.dim(0) == batch.num_tokens());
  if (!fits) {
    return invalid_argument(str_cat("the draft layer is given hidden states ", describe(hidden),
                                    ", expected the streams [", batch.num_tokens(), ", ",
                                    state_width(), "]"));
  }
  PhaseScope phase(ex.recorder, Phase::kDraft);
  Scope scope(ex.recorder, "nextn");
  const int64_t T = batch.num_tokens();
  const int64_t H = config_.hidden_size;
  Arena& arena = *ex.activations;
  View state = batch.hidden;
  if (!state.present()) {
    FATHOM_ASSIGN(state, arena.tensor({T, state_width()}, options_.activations, "T,n*H"));
  }
  FATHOM_ASSIGN(const View h, arena.tensor({T, H}, options_.activations, "T,H"));
  const View streams = reshape(state, {T, config_.hc_mult, H}, "T,n,H");
  FATHOM_TRY(nextn_streams(ex, batch, hidden, streams));
  FATHOM_TRY(run_layers(ex, {&nextn_.layer, 1}, batch, streams));
  tap(batch.probe, "draft.output", nextn_.layer.index, state);
  out.hidden = state;
  return read_out(ex, batch, streams, nextn_.hc_head, nextn_.norm, h, out);
}

}  // namespace fathom
