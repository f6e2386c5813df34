// The dry run: the real model code on views without data.
#include <algorithm>
#include <vector>

#include "fathom/base/check.h"
#include "fathom/base/checked_math.h"
#include "fathom/models/model.h"

namespace fathom {
namespace {

std::vector<SequenceStep> requests_of(const BatchShape::Requests& r,
                                      LogitRows logits,
                                      std::span<const int32_t> tokens,
                                      std::span<const int32_t> pages) {
  const SequenceStep step{.tokens = tokens.first(static_cast<size_t>(r.new_tokens)),
                          .cached = r.cached,
                          .pages = pages,
                          .slot = 0,
                          .logits = logits};
  return std::vector<SequenceStep>(static_cast<size_t>(r.count), step);
}

void drop_data(Batch& batch, std::vector<View>& slots, std::vector<PooledRows>& pooled) {
  AttentionBatch& a = batch.attention;
  for (View* v : {&batch.token_ids, &batch.logit_rows, &a.positions}) {
    v->data = nullptr;
  }
  for (TokenRange* r : {&a.prefill, &a.decode}) {
    for (View* v : {&r->query_offsets_view, &r->kv_lens_view, &r->block_table, &r->request_slots})
      v->data = nullptr;
  }
  slots.assign(batch.slots.begin(), batch.slots.end());
  for (View& v : slots)
    v.data = nullptr;
  batch.slots = slots;
  pooled.assign(batch.pooled.begin(), batch.pooled.end());
  for (PooledRows& rows : pooled) {
    for (View* v : {&rows.gather, &rows.positions, &rows.slots})
      v->data = nullptr;
  }
  batch.pooled = pooled;
}

}  // namespace

Result<MemoryNeeds> dry_run(const Model& model,
                            const BatchShape& shape,
                            const DryRunOptions& options) {
  FATHOM_CHECK(options.gpu == nullptr || options.kernels != nullptr,
               "a dry run for a GPU has its kernels");
  const CacheLayout layout = model.cache_layout();
  int64_t longest = 1;
  int64_t most_tokens = 1;
  int64_t requests = 0;
  for (const BatchShape::Requests* r : {&shape.prefill, &shape.more_prefill, &shape.decode}) {
    if (r->count == 0) continue;
    longest = std::max(longest, r->cached + r->new_tokens);
    most_tokens = std::max(most_tokens, r->new_tokens);
    requests += r->count;
  }
  const std::vector<int32_t> tokens(static_cast<size_t>(most_tokens));
  const std::vector<int32_t> pages(static_cast<size_t>(layout.blocks_for(longest)));
  std::vector<SequenceStep> prefill = requests_of(shape.prefill, shape.logits, tokens, pages);
  const auto more = requests_of(shape.more_prefill, shape.logits, tokens, pages);
  prefill.insert(prefill.end(), more.begin(), more.end());
  // A sequence that decodes several tokens wants the logits of each.
  const LogitRows decoded = shape.decode.new_tokens > 1 ? LogitRows::kAll : shape.logits;
  BatchBuffer buffer(layout);
  FATHOM_ASSIGN(
      Batch batch,
      buffer.build(prefill, requests_of(shape.decode, decoded, tokens, pages), shape.padding));
  std::vector<View> slots;
  std::vector<PooledRows> pooled;
  drop_data(batch, slots, pooled);
  const std::vector<GroupRows> cache =
      cache_views(layout, nullptr, static_cast<int64_t>(pages.size()) * requests, requests, false);
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
    FATHOM_TRY(model.draft(ex, batch, hidden, out));
  } else {
    FATHOM_TRY(model.forward(ex, batch, out));
  }
  return MemoryNeeds{.activation_bytes = activations.high_water(),
                     .scratch_bytes = scratch.high_water()};
}

}  // namespace fathom
