#include "fathom/layers/norm.h"

#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"

namespace fathom {

Result<Hidden> make_hidden(Exec& ex, int64_t num_tokens, int64_t width, Format format) {
  Hidden h;
  FATHOM_ASSIGN(h.residual, ex.activations->tensor({num_tokens, width}, format, "T,H"));
  FATHOM_ASSIGN(h.branch, ex.activations->tensor({num_tokens, width}, format, "T,H"));
  FATHOM_ASSIGN(h.normed, ex.activations->tensor({num_tokens, width}, format, "T,H"));
  return h;
}

Status add_norm(Exec& ex, Op op, Hidden& h, const View& w, float eps) {
  if (!h.pending) return rms_norm(ex, op, h.residual, w, h.normed, eps);
  h.pending = false;
  return launch<AddRmsNorm>(ex, op,
                            {.x = h.branch, .h = h.residual, .w = w, .y = h.normed, .eps = eps});
}

Status rms_norm(Exec& ex, Op op, const View& x, const View& w, const View& y, float eps) {
  return launch<RmsNorm>(ex, op, {.x = x, .w = w, .y = y, .eps = eps});
}

}  // namespace fathom
