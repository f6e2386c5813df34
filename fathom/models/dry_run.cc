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
                          .logits = logits};
  return std::vector<SequenceStep>(static_cast<size_t>(r.count), step);
}

void drop_data(Batch& batch) {
  AttentionBatch& a = batch.attention;
  for (View* v : {&batch.token_ids, &batch.logit_rows, &a.positions, &a.slots,
                  &a.prefill.query_offsets_view, &a.prefill.kv_lens_view, &a.prefill.block_table,
                  &a.decode.query_offsets_view, &a.decode.kv_lens_view, &a.decode.block_table}) {
    v->data = nullptr;
  }
}

}  // namespace

Result<MemoryNeeds> dry_run(const Model& model,
                            const BatchShape& shape,
                            int num_threads,
                            Recorder* recorder,
                            DryPass pass,
                            const KernelSet* kernels,
                            const DeviceInfo* gpu) {
  FATHOM_CHECK(gpu == nullptr || kernels != nullptr, "a dry run for a GPU has its kernels");
  const KvLayout layout = model.kv_layout();
  const int64_t longest = std::max({shape.prefill.cached + shape.prefill.new_tokens,
                                    shape.decode.cached + shape.decode.new_tokens, int64_t{1}});
  const std::vector<int32_t> tokens(
      static_cast<size_t>(std::max(shape.prefill.new_tokens, shape.decode.new_tokens)));
  const std::vector<int32_t> pages(static_cast<size_t>(ceil_div(longest, layout.page_size)));
  BatchBuffer buffer(layout.page_size);
  FATHOM_ASSIGN(Batch batch, buffer.build(requests_of(shape.prefill, shape.logits, tokens, pages),
                                          requests_of(shape.decode, shape.logits, tokens, pages),
                                          shape.padding));
  drop_data(batch);
  const int64_t num_pages = static_cast<int64_t>(pages.size()) *
                            std::max<int64_t>(shape.prefill.count + shape.decode.count, 1);
  const std::vector<View> kv(static_cast<size_t>(layout.num_layers),
                             make_view(nullptr, {num_pages, layout.page_size, layout.width},
                                       layout.format, "pages,page_size,Lkv+Dr"));
  batch.kv = kv;

  Arena activations;
  Arena scratch;
  Exec ex;
  ex.backend = Backend::kDry;
  ex.kernels = kernels;
  ex.activations = &activations;
  ex.scratch = &scratch;
  ex.recorder = recorder;
  ex.num_threads = num_threads;
  ex.device = gpu;
  ForwardOut out;
  if (pass == DryPass::kDraft) {
    const View hidden = make_view(nullptr, {batch.num_tokens(), model.config().hidden_size},
                                  model.options().activations, "T,H");
    FATHOM_TRY(model.draft(ex, batch, hidden, out));
  } else {
    FATHOM_TRY(model.forward(ex, batch, out));
  }
  return MemoryNeeds{.activation_bytes = activations.high_water(),
                     .scratch_bytes = scratch.high_water()};
}

}  // namespace fathom
