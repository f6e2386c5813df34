#include "fathom/layers/ffn/mlp.h"

#include <array>

#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/layers/linear.h"

namespace fathom {

Status mlp(Exec& ex, const MlpWeights& w, const View& x, const View& y, float limit) {
  ArenaScope arena(*ex.activations);
  const int64_t T = x.dim(0);
  const int64_t I = w.down.w.cols();
  const std::array<Op, 2> parts = {Op("gate_proj"), Op("up_proj")};
  FATHOM_ASSIGN(const View gate_up, ex.activations->tensor({T, 2 * I}, x.format, w.gate_up_axes));
  FATHOM_TRY(linear_rows_of(ex, "gate_up_proj", parts, x, w.gate_up, gate_up));
  FATHOM_ASSIGN(const View act, ex.activations->tensor({T, I}, x.format, w.act_axes));
  FATHOM_TRY(launch<SiluMul>(ex, "act_fn", {.x = gate_up, .y = act, .limit = limit}));
  return linear(ex, "down_proj", act, w.down, y);
}

}  // namespace fathom
