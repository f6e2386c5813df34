#include "fathom/runtime/step.h"

#include <algorithm>

namespace fathom {
namespace {

SequenceStep sequence_step(const StepItem& item) {
  const Sequence& s = *item.sequence;
  return {.tokens = std::span(s.tokens).subspan(static_cast<size_t>(item.begin),
                                                static_cast<size_t>(item.count)),
          .cached = item.begin,
          .pages = s.table.pages(),
          .logits = item.yields_token ? LogitRows::kLast : LogitRows::kNone};
}

// The largest steps: a whole budget of prompt, without and with a long prefix; prompts of all
// sequences; all sequences decoding; and both kinds together.
std::vector<BatchShape> largest_steps(const StepShape& s) {
  const int64_t seqs = s.max_num_seqs;
  const int64_t length = s.max_model_len;
  const int64_t chunk = std::min(s.max_num_batched_tokens, length);
  const int64_t part = std::min(std::max<int64_t>(s.max_num_batched_tokens / seqs, 1), length);
  const int64_t rest = std::clamp<int64_t>(s.max_num_batched_tokens - (seqs - 1), 1, length);
  const BatchShape::Requests decodes{.count = seqs, .new_tokens = 1, .cached = length - 1};
  BatchShape::Requests fewer = decodes;
  fewer.count = seqs - 1;
  std::vector<BatchShape> shapes(5);
  shapes[0].prefill = {.count = 1, .new_tokens = chunk, .cached = 0};
  shapes[1].prefill = {.count = 1, .new_tokens = chunk, .cached = length - chunk};
  shapes[2].prefill = {.count = seqs, .new_tokens = part, .cached = length - part};
  shapes[3].decode = decodes;
  shapes[4].prefill = {.count = 1, .new_tokens = rest, .cached = length - rest};
  shapes[4].decode = fewer;
  return shapes;
}

Result<MemoryNeeds> sampler_memory(const Model& model, const StepShape& shape) {
  Arena activations;
  Arena scratch;
  Exec ex;
  ex.backend = Backend::kDry;
  ex.activations = &activations;
  ex.scratch = &scratch;
  ex.num_threads = shape.num_threads;
  Sampler sampler(shape.num_ids, shape.max_num_seqs);
  const auto rows = static_cast<size_t>(shape.max_num_seqs);
  const std::vector<SampleRow> sample_rows(rows, Sampler::largest_row());
  std::vector<SampleResult> results(rows);
  const View logits =
      make_view(nullptr, {shape.max_num_seqs, model.config().vocab_size}, Format::kF32, "R,V");
  FATHOM_TRY(sampler.sample(ex, logits, sample_rows, results));
  return MemoryNeeds{.activation_bytes = activations.high_water(),
                     .scratch_bytes = scratch.high_water()};
}

}  // namespace

Result<MemoryNeeds> step_memory(const Model& model, const StepShape& shape) {
  MemoryNeeds needs;
  for (const BatchShape& step : largest_steps(shape)) {
    FATHOM_ASSIGN(const MemoryNeeds pass, dry_run(model, step, shape.num_threads));
    needs.activation_bytes = std::max(needs.activation_bytes, pass.activation_bytes);
    needs.scratch_bytes = std::max(needs.scratch_bytes, pass.scratch_bytes);
  }
  // The logits lie in the activation arena, so sampling takes its memory behind them.
  FATHOM_ASSIGN(const MemoryNeeds sampling, sampler_memory(model, shape));
  needs.activation_bytes += sampling.activation_bytes;
  needs.scratch_bytes = std::max(needs.scratch_bytes, sampling.scratch_bytes);
  return needs;
}

StepRunner::StepRunner(const Model& model, const KvStorage& kv, Exec& ex, const StepShape& shape)
    : model_(model),
      kv_(kv),
      ex_(ex),
      batch_(model.kv_layout().page_size),
      sampler_(shape.num_ids, shape.max_num_seqs) {
  const auto seqs = static_cast<size_t>(shape.max_num_seqs);
  prefill_.reserve(seqs);
  decode_.reserve(seqs);
  rows_.reserve(seqs);
  results_.reserve(seqs);
  reserve_batch(shape);
}

// The arrays of a batch grow to the largest step once, by building it.
void StepRunner::reserve_batch(const StepShape& shape) {
  const int64_t first = std::min(shape.max_num_batched_tokens, shape.max_model_len);
  const std::vector<int32_t> tokens(static_cast<size_t>(first));
  const std::vector<PageId> pages(static_cast<size_t>(
      BlockTable::pages_for(shape.max_model_len, static_cast<int>(model_.kv_layout().page_size))));
  const SequenceStep last_token{.tokens = std::span(tokens).first(1),
                                .cached = shape.max_model_len - 1,
                                .pages = pages,
                                .logits = LogitRows::kLast};
  decode_.assign(static_cast<size_t>(shape.max_num_seqs), last_token);
  prefill_ = decode_;
  prefill_[0].tokens = tokens;
  prefill_[0].cached = 0;
  const Result<Batch> largest = batch_.build(prefill_, decode_);
  FATHOM_CHECK(largest.ok(), "the largest step is a valid one");
}

Result<Batch> StepRunner::build(const StepPlan& plan) {
  prefill_.clear();
  decode_.clear();
  for (const StepItem& item : plan.prefill)
    prefill_.push_back(sequence_step(item));
  for (const StepItem& item : plan.decode)
    decode_.push_back(sequence_step(item));
  FATHOM_ASSIGN(Batch batch, batch_.build(prefill_, decode_));
  batch.kv = kv_.views();
  return batch;
}

Status StepRunner::run(const StepPlan& plan, const RowOf& row_of) {
  rows_.clear();
  for (const auto* items : {&plan.prefill, &plan.decode}) {
    for (const StepItem& item : *items) {
      if (item.yields_token) rows_.push_back(row_of(*item.sequence));
    }
  }
  results_.assign(rows_.size(), {});
  ex_.activations->reset();
  ex_.scratch->reset();
  FATHOM_ASSIGN(const Batch batch, build(plan));
  ForwardOut out;
  FATHOM_TRY(model_.forward(ex_, batch, out));
  return sampler_.sample(ex_, out.logits, rows_, results_);
}

}  // namespace fathom
