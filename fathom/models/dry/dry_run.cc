// The dry run: the real model code on views without data.
#include <algorithm>
#include <vector>

#include "fathom/base/check.h"
#include "fathom/models/dry/dry_batch.h"
#include "fathom/models/model.h"

namespace fathom {

Result<MemoryNeeds> dry_run(const Model& model,
                            const BatchShape& shape,
                            const DryRunOptions& options) {
  FATHOM_CHECK(options.gpu == nullptr || options.kernels != nullptr,
               "a dry run for a GPU has its kernels");
  const CacheLayout layout = model.cache_layout();
  FATHOM_ASSIGN(const DryBatch step, DryBatch::create(layout, shape));
  int64_t longest = 1;
  int64_t requests = 0;
  for (const BatchShape::Requests* r : {&shape.prefill, &shape.more_prefill, &shape.decode}) {
    if (r->count == 0) continue;
    longest = std::max(longest, r->cached + r->new_tokens);
    requests += r->count;
  }
  const std::vector<GroupRows> cache =
      cache_views(layout, nullptr, layout.blocks_for(longest) * requests, requests, false);
  Batch batch = step.batch();
  batch.cache = cache;

  Arena activations;
  Arena scratch;
  Exec ex;
  ex.backend = Backend::kDry;
  ex.kernels = options.kernels;
  ex.activations = &activations;
  ex.scratch = &scratch;
  ex.recorder = options.recorder;
  ex.pins = options.pins;
  ex.num_threads = options.num_threads;
  ex.device = options.gpu;
  ForwardOut out;
  if (options.pass == DryPass::kDraft) {
    const View hidden = make_view(nullptr, {batch.num_tokens(), model.state_width()},
                                  model.options().activations, "T,H");
    if (options.selects_states) {
      batch.state_rows = make_view(nullptr, {batch.num_tokens()}, Format::kI32, "T");
    }
    FATHOM_TRY(model.draft(ex, batch, hidden, out));
  } else {
    FATHOM_TRY(model.forward(ex, batch, out));
  }
  return MemoryNeeds{.activation_bytes = activations.high_water(),
                     .scratch_bytes = scratch.high_water()};
}

}  // namespace fathom
