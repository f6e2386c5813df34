#include "fathom/layers/embedding.h"

#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/embed/embedding/embedding.h"
#include "fathom/kernels/moe/permute/permute.h"

namespace fathom {

Status embed_tokens(Exec& ex, const View& ids, const View& table, const View& y) {
  return launch<Embed>(ex, "embed_tokens", {.ids = ids, .table = table, .y = y});
}

Result<View> select_states(Exec& ex, const View& hidden, const View& rows, const View& room) {
  if (!rows.present()) return hidden;
  FATHOM_TRY(launch<PermuteRows>(ex, "select_states", {.x = hidden, .src_row = rows, .y = room}));
  return room;
}

Status lm_head(
    Exec& ex, const View& hidden, const View& rows, const LinearWeight& head, const View& logits) {
  if (!rows.present()) return linear(ex, "lm_head", hidden, head, logits);
  ArenaScope scope(*ex.activations);
  FATHOM_ASSIGN(const View wanted,
                ex.activations->tensor({rows.dim(0), hidden.dim(1)}, hidden.format, "R,H"));
  FATHOM_TRY(launch<PermuteRows>(ex, "select_rows", {.x = hidden, .src_row = rows, .y = wanted}));
  return linear(ex, "lm_head", wanted, head, logits);
}

}  // namespace fathom
