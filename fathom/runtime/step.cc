#include "fathom/runtime/step.h"

#include <algorithm>

#include "fathom/runtime/gpu/gpu_shapes.h"

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

// Whole prompts of short sequences that fill a step, or as much of it as one pass expands keys for
// at once (AttentionOptions::prefill_chunk).
std::vector<BatchShape> fresh_prompts(const StepShape& s, int64_t key_chunk) {
  std::vector<BatchShape> shapes;
  const int64_t most = std::min(s.max_num_batched_tokens, s.max_num_seqs * s.max_model_len);
  for (const int64_t tokens : {most, key_chunk}) {
    if (!shapes.empty() && tokens >= most) break;
    const int64_t fewest = ceil_div(tokens, s.max_model_len);
    int64_t count = fewest;
    while (count < s.max_num_seqs && tokens % count != 0)
      ++count;
    if (tokens % count != 0) count = fewest;
    BatchShape shape;
    shape.prefill = {.count = count, .new_tokens = tokens / count, .cached = 0};
    shapes.push_back(shape);
  }
  return shapes;
}

// The largest steps: a whole budget of prompt, without and with a long prefix; prompts of all
// sequences; all sequences decoding; and both kinds together.
std::vector<BatchShape> largest_steps(const StepShape& s, int64_t key_chunk) {
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
  for (const BatchShape& fresh : fresh_prompts(s, key_chunk))
    shapes.push_back(fresh);
  return shapes;
}

// Prompts in the absorbed form: the kernel splits keys by the queries of a call, and its workspace
// is largest somewhere between one query and a whole chunk. An eighth apart; what lies between has
// room in the factor of step_memory.
void add_absorbed_prompts(const StepShape& s, int64_t page_size, std::vector<BatchShape>& shapes) {
  const int64_t chunk = std::min(s.max_num_batched_tokens, s.max_model_len);
  for (int64_t tokens = 1; tokens <= chunk; tokens += std::max<int64_t>(tokens / 8, 1)) {
    for (const int64_t pages : page_buckets(ceil_div(s.max_model_len, page_size))) {
      const int64_t length = std::min(pages * page_size, s.max_model_len);
      if (length < tokens) continue;
      BatchShape shape;
      shape.prefill = {.count = 1, .new_tokens = tokens, .cached = length - tokens};
      shapes.push_back(shape);
    }
  }
}

// The same on a GPU, whose decode ranges are padded. Kernels split long contexts by the shape of a
// step, so that their workspace is largest in the middle: every shape is asked for.
std::vector<BatchShape> largest_gpu_steps(const StepShape& s,
                                          const AttentionOptions& attention,
                                          int64_t page_size) {
  constexpr int64_t kSplitTokens = 65536;  // beyond, tables count as if they were that long
  const int64_t most_pages = ceil_div(s.max_model_len, page_size);
  const DecodePadding largest{.requests = decode_bucket(s.max_num_seqs), .pages = most_pages};
  std::vector<BatchShape> shapes = largest_steps(s, attention.prefill_chunk);
  for (BatchShape& shape : shapes)
    shape.padding = largest;
  // Padding comes on top of the token budget, and a prompt of every other sequence may end.
  BatchShape mixed;
  const int64_t part =
      std::min(ceil_div(s.max_num_batched_tokens, s.max_num_seqs), s.max_model_len);
  mixed.prefill = {.count = s.max_num_seqs, .new_tokens = part, .cached = s.max_model_len - part};
  mixed.decode = {.count = 1, .new_tokens = 1, .cached = s.max_model_len - 1};
  mixed.padding = largest;
  shapes.push_back(mixed);
  for (const int64_t requests : decode_buckets(s.max_num_seqs)) {
    for (const int64_t pages : page_buckets(most_pages)) {
      if (pages * page_size > kSplitTokens && pages != most_pages) continue;
      BatchShape shape;
      shape.decode = {.count = std::min(requests, s.max_num_seqs),
                      .new_tokens = 1,
                      .cached = std::min(pages * page_size, s.max_model_len) - 1};
      shape.padding = {.requests = requests, .pages = pages};
      shapes.push_back(shape);
    }
  }
  if (attention.always_absorbed) add_absorbed_prompts(s, page_size, shapes);
  return shapes;
}

Result<MemoryNeeds> largest_pass(const Model& model, const StepShape& shape) {
  const std::vector<BatchShape> steps =
      shape.gpu == nullptr
          ? largest_steps(shape, model.options().attention.prefill_chunk)
          : largest_gpu_steps(shape, model.options().attention, model.kv_layout().page_size);
  MemoryNeeds needs;
  for (const BatchShape& step : steps) {
    FATHOM_ASSIGN(const MemoryNeeds pass, dry_run(model, step, shape.num_threads, nullptr,
                                                  DryPass::kForward, shape.kernels, shape.gpu));
    needs.activation_bytes = std::max(needs.activation_bytes, pass.activation_bytes);
    needs.scratch_bytes = std::max(needs.scratch_bytes, pass.scratch_bytes);
  }
  return needs;
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
  FATHOM_ASSIGN(MemoryNeeds needs, largest_pass(model, shape));
  if (shape.gpu != nullptr) {
    // The choices of greedy rows; and prompts of lengths between those that were asked for.
    needs.activation_bytes += align_up<int64_t>(8 * decode_bucket(shape.max_num_seqs) * 2, 64);
    needs.scratch_bytes *= 2;
    return needs;
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

Result<std::unique_ptr<StepRunner>> StepRunner::create(const Model& model,
                                                       const KvStorage& kv,
                                                       Exec& ex,
                                                       const StepShape& shape,
                                                       const KernelSet* cpu_kernels,
                                                       CudaGraphs graphs) {
  std::unique_ptr<StepRunner> runner(new StepRunner(model, kv, ex, shape));
  runner->host_.kernels = cpu_kernels;
  if (ex.backend == Backend::kCuda) FATHOM_TRY(runner->create_gpu_runner(shape, graphs));
  return runner;
}

Status StepRunner::create_gpu_runner(const StepShape& shape, CudaGraphs graphs) {
  const int64_t page_size = model_.kv_layout().page_size;
  FATHOM_ASSIGN(gpu_, GpuRunner::create(model_, kv_.views(), ex_,
                                        {.max_tokens = shape.max_num_batched_tokens,
                                         .max_requests = shape.max_num_seqs,
                                         .max_pages = ceil_div(shape.max_model_len, page_size),
                                         .max_logits = shape.max_num_seqs,
                                         .num_ids = shape.num_ids,
                                         .graphs = graphs}));
  FATHOM_ASSIGN(const MemoryNeeds needs, sampler_memory(model_, shape));
  FATHOM_ASSIGN(Buffer activations, Buffer::allocate(DeviceKind::kCpu, needs.activation_bytes,
                                                     "the memory of samplers"));
  FATHOM_ASSIGN(Buffer scratch, Buffer::allocate(DeviceKind::kCpu, needs.scratch_bytes,
                                                 "the workspaces of samplers"));
  host_activations_ = Arena(std::move(activations));
  host_scratch_ = Arena(std::move(scratch));
  host_.pool = ex_.pool;
  host_.num_threads = ex_.num_threads;
  host_.activations = &host_activations_;
  host_.scratch = &host_scratch_;
  return {};
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

void StepRunner::list_sequences(const StepPlan& plan) {
  prefill_.clear();
  decode_.clear();
  for (const StepItem& item : plan.prefill)
    prefill_.push_back(sequence_step(item));
  for (const StepItem& item : plan.decode)
    decode_.push_back(sequence_step(item));
}

// Greedy rows are chosen where their logits are; with any other row all of them are brought back.
Status StepRunner::run_on_gpu() {
  ForwardOut out;
  FATHOM_TRY(gpu_->start(prefill_, decode_, out));
  if (rows_.empty()) return gpu_->finish();
  if (Sampler::only_largest(rows_)) {
    FATHOM_ASSIGN(const std::span<const GreedyChoice> choices, gpu_->finish_choices());
    for (size_t i = 0; i < rows_.size(); ++i) {
      results_[i].finite = choices[i].finite;
      if (choices[i].finite) results_[i].token = choices[i].id;
    }
    return {};
  }
  FATHOM_ASSIGN(const View logits, gpu_->finish_logits());
  host_activations_.reset();
  host_scratch_.reset();
  const auto rows = static_cast<int64_t>(rows_.size());
  return sampler_.sample(host_, slice_rows(logits, 0, rows), rows_, results_);
}

Status StepRunner::run(const StepPlan& plan, const RowOf& row_of) {
  rows_.clear();
  for (const auto* items : {&plan.prefill, &plan.decode}) {
    for (const StepItem& item : *items) {
      if (item.yields_token) rows_.push_back(row_of(*item.sequence));
    }
  }
  results_.assign(rows_.size(), {});
  list_sequences(plan);
  if (gpu_ != nullptr) return run_on_gpu();
  ex_.activations->reset();
  ex_.scratch->reset();
  FATHOM_ASSIGN(Batch batch, batch_.build(prefill_, decode_));
  batch.kv = kv_.views();
  ForwardOut out;
  FATHOM_TRY(model_.forward(ex_, batch, out));
  return sampler_.sample(ex_, out.logits, rows_, results_);
}

}  // namespace fathom
