// Multi-token prediction: the draft layer of DeepSeek-V4. inference/model.py, MTPBlock.
//
//   e     = RMSNorm(Embed(t_{i+1}))
//   Z[j]  = W_e e + W_h RMSNorm(X_i[j])        X_i: the streams of token i behind the last layer
//   X'    = Layer(Z)                           a window alone, the rotation of position i
//   logits for t_{i+2} = W_head RMSNorm(read(X'))        streams are read by weights of its own
//
// Embedding and head are those of the main model. X' is the X_i of a further step.
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/mhc/mhc_post/mhc_post.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/layers/embedding.h"
#include "fathom/layers/linear.h"
#include "fathom/layers/norm.h"
#include "fathom/layers/phase_scope.h"
#include "fathom/models/deepseek/deepseek_v3.h"
#include "fathom/models/deepseek/deepseek_v4.h"
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

// Z, in two halves that are added: those of the token and those of its streams.
Status DeepseekV4::nextn_input(Exec& ex,
                               const Batch& batch,
                               const View& hidden,
                               const View& streams) const {
  const int64_t T = batch.num_tokens();
  const int64_t n = config_.hc_mult;
  const int64_t H = config_.hidden_size;
  Arena& arena = *ex.activations;
  ArenaScope temporary(arena);
  FATHOM_ASSIGN(const View halves, arena.tensor({T * n, 2 * H}, streams.format, "T*n,2*H"));
  {
    ArenaScope part(arena);
    FATHOM_ASSIGN(const View e, arena.tensor({T, H}, streams.format, "T,H"));
    FATHOM_ASSIGN(const View projected, arena.tensor({T, H}, streams.format, "T,H"));
    FATHOM_TRY(embed_tokens(ex, batch.token_ids, embed_, e));
    FATHOM_TRY(rms_norm(ex, "enorm", e, nextn_.enorm, e, eps_));
    FATHOM_TRY(linear(ex, "e_proj", e, nextn_.e_proj, projected));
    const View of_token = slice_cols(reshape(halves, {T, n, 2 * H}), 0, H, "T,n,H");
    FATHOM_TRY(launch<MhcExpand>(ex, "hc_expand", {.x = projected, .streams = of_token}));
  }
  FATHOM_ASSIGN(const View normed, arena.tensor({T * n, H}, streams.format, "T*n,H"));
  FATHOM_TRY(
      rms_norm(ex, "hnorm", reshape(hidden, {T * n, H}, "T*n,H"), nextn_.hnorm, normed, eps_));
  FATHOM_TRY(linear(ex, "h_proj", normed, nextn_.h_proj, slice_cols(halves, H, H, "T*n,H")));
  return launch<TopkSum>(
      ex, "add_halves",
      {.x = reshape(halves, {T * n, 2, H}, "T*n,2,H"), .y = reshape(streams, {T * n, H}, "T*n,H")});
}

Status DeepseekV4::draft(Exec& ex, const Batch& batch, const View& hidden, ForwardOut& out) const {
  if (!has_draft_) return unsupported("this model has no draft layer");
  const int64_t T = batch.num_tokens();
  if (hidden.rank != 2 || hidden.dim(0) != T || hidden.dim(1) != state_width()) {
    return invalid_argument(str_cat("the draft layer is given hidden states ", describe(hidden),
                                    ", expected the streams [", T, ", ", state_width(), "]"));
  }
  PhaseScope phase(ex.recorder, Phase::kDraft);
  Scope scope(ex.recorder, "nextn");
  const int64_t H = config_.hidden_size;
  Arena& arena = *ex.activations;
  FATHOM_ASSIGN(const View state, arena.tensor({T, state_width()}, options_.activations, "T,n*H"));
  const View streams = reshape(state, {T, config_.hc_mult, H}, "T,n,H");
  FATHOM_TRY(nextn_input(ex, batch, hidden, streams));
  FATHOM_TRY(run_layer(ex, nextn_.layer, batch, streams));
  FATHOM_ASSIGN(const View h, arena.tensor({T, H}, options_.activations, "T,H"));
  FATHOM_TRY(final_state(ex, streams, nextn_.hc_head, nextn_.norm, h));
  tap(batch.probe, "draft.output", nextn_.layer.index, state);
  out.hidden = state;
  return head_logits(ex, batch, h, head_, out);
}

}  // namespace fathom
