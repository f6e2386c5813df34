// Multi-token prediction: the draft head of the V3 family. DeepSeek-V3 report, section 2.2.
//
//   z_i  = W_eh [ RMSNorm(Embed(t_{i+1})) ; RMSNorm(h_i) ]     h_i: after the main model's norm
//   h'_i = DecoderLayer(z_i)                                    its own KV layer, position of h_i
//   n_i  = RMSNorm(h'_i);  logits for t_{i+2} = W_head n_i
//
// The released eh_proj has the embedding half first, against the formula in the report.
#include "fathom/layers/embedding.h"
#include "fathom/layers/linear.h"
#include "fathom/models/deepseek/deepseek_v3.h"
#include "fathom/trace/scope.h"

namespace fathom {

// Embedding and head are stored again under the draft layer; they are copies and stay unread.
Status declare_nextn(WeightPlan& plan, const ModelConfig& c, const ModelOptions& o, NextN& w) {
  using enum WeightRole;
  const int index = static_cast<int>(c.num_hidden_layers);
  const std::string p = str_cat("model.layers.", index, ".");
  plan.set_draft(true);
  FATHOM_TRY(plan.vector(p + "enorm.weight", "H", kNorm, &w.enorm));
  FATHOM_TRY(plan.vector(p + "hnorm.weight", "H", kNorm, &w.hnorm));
  FATHOM_TRY(plan.matrix(p + "eh_proj.weight", "H,2*H", kDraft, &w.eh_proj));
  FATHOM_TRY(declare_layer(plan, c, o, index, w.layer));
  FATHOM_TRY(plan.vector(p + "shared_head.norm.weight", "H", kNorm, &w.head_norm));
  plan.set_draft(false);
  return {};
}

Status nextn_forward(Exec& ex,
                     const LayerContext& m,
                     const NextN& w,
                     const View& embed,
                     const LinearWeight& head,
                     const Batch& batch,
                     const View& hidden,
                     ForwardOut& out) {
  Scope scope(ex.recorder, "nextn");
  const int64_t T = batch.num_tokens();
  const int64_t H = hidden.dim(1);
  FATHOM_ASSIGN(Hidden h, make_hidden(ex, T, H, hidden.format));
  {
    ArenaScope arena(*ex.activations);
    FATHOM_ASSIGN(const View both, ex.activations->tensor({T, 2 * H}, hidden.format, "T,2*H"));
    FATHOM_TRY(embed_tokens(ex, batch.token_ids, embed, h.branch));
    FATHOM_TRY(rms_norm(ex, "enorm", h.branch, w.enorm, slice_cols(both, 0, H, "T,H"), m.eps));
    const View half = slice_cols(both, H, H, "T,H");
    FATHOM_ASSIGN(const View states, select_states(ex, hidden, batch.state_rows, half));
    FATHOM_TRY(rms_norm(ex, "hnorm", states, w.hnorm, half, m.eps));
    FATHOM_TRY(linear(ex, "eh_proj", both, w.eh_proj, h.residual));
  }
  FATHOM_TRY(decoder_layer(ex, m, w.layer, batch, h));
  if (batch.hidden.present()) h.normed = batch.hidden;
  FATHOM_TRY(add_norm(ex, "shared_head.norm", h, w.head_norm, m.eps));
  tap(batch.probe, "draft.output", w.layer.index, h.residual);
  out.hidden = h.normed;
  return head_logits(ex, batch, h.normed, head, out);
}

}  // namespace fathom
