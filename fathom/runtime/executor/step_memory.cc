#include "fathom/runtime/executor/step_memory.h"

#include <vector>

#include "fathom/runtime/executor/decode_shapes.h"
#include "fathom/runtime/sample/sampler.h"

namespace fathom {
namespace {

using Requests = BatchShape::Requests;

// `tokens` over at most `count` prompts in equal parts but for the last one; each ends at `end`
// tokens.
void spread_prompts(int64_t tokens, int64_t count, int64_t end, BatchShape& shape) {
  const int64_t part = ceil_div(tokens, count);
  const int64_t whole = tokens / part;
  const int64_t rest = tokens % part;
  shape.prefill = {.count = whole, .new_tokens = part, .cached = end - part};
  if (rest > 0) shape.more_prefill = {.count = 1, .new_tokens = rest, .cached = end - rest};
}

// Prompts without a prefix that have `tokens` tokens together.
BatchShape fresh_prompts(int64_t tokens, int64_t longest) {
  BatchShape shape;
  const int64_t part = std::min(tokens, longest);
  shape.prefill = {.count = tokens / part, .new_tokens = part, .cached = 0};
  if (const int64_t rest = tokens % part; rest > 0) {
    shape.more_prefill = {.count = 1, .new_tokens = rest, .cached = 0};
  }
  return shape;
}

// The steps in one of which each part of a pass takes its most (step_memory.h).
std::vector<BatchShape> largest_steps(const StepShape& s, int64_t key_chunk) {
  const int64_t length = s.max_model_len;
  const int64_t budget = std::min(s.max_num_batched_tokens, s.max_num_seqs * length);
  const int64_t queries = std::min(s.max_queries, length);
  std::vector<BatchShape> shapes;
  // One prompt: the most queries over the most keys; and its last token alone.
  const int64_t chunk = s.max_prompt();
  BatchShape prompt;
  prompt.prefill = {.count = 1, .new_tokens = chunk, .cached = length - chunk};
  if (s.all_logits) prompt.logits = LogitRows::kAll;
  shapes.push_back(prompt);
  // The whole budget in prompts that all end: the most tokens with the most rows of logits.
  BatchShape ends;
  const int64_t prompts = std::min(s.max_num_seqs, budget);
  spread_prompts(budget, prompts, length, ends);
  shapes.push_back(ends);
  // The form without a prefix expands the keys of all prompts at once, up to a chunk of them.
  shapes.push_back(fresh_prompts(std::min(budget, key_chunk), length));
  shapes.push_back(fresh_prompts(budget, length));
  // All sequences decode; and all but one beside a prompt that fills the budget.
  const Requests decodes{
      .count = s.max_num_seqs, .new_tokens = queries, .cached = length - queries};
  BatchShape decode;
  decode.decode = decodes;
  shapes.push_back(decode);
  BatchShape mixed;
  mixed.decode = decodes;
  mixed.decode.count -= 1;
  const int64_t rest = std::clamp<int64_t>(budget - mixed.decode.count * queries, 1, length);
  mixed.prefill = {.count = 1, .new_tokens = rest, .cached = length - rest};
  shapes.push_back(mixed);
  return shapes;
}

// Prompts in the absorbed form on a GPU, which somebody has to ask for: the kernel cuts keys by the
// number of queries and of pages, too many pairs to ask for each. An eighth apart; what lies
// between has room in kAbsorbedMargin.
constexpr int64_t kAbsorbedMargin = 2;

void add_absorbed_prompts(const StepShape& s,
                          int64_t block_tokens,
                          std::vector<BatchShape>& shapes) {
  for (int64_t tokens = 1; tokens <= s.max_prompt(); tokens += std::max<int64_t>(tokens / 8, 1)) {
    for (const int64_t pages : page_buckets(ceil_div(s.max_model_len, block_tokens))) {
      const int64_t length = std::min(pages * block_tokens, s.max_model_len);
      if (length < tokens) continue;
      BatchShape shape;
      shape.prefill = {.count = 1, .new_tokens = tokens, .cached = length - tokens};
      shapes.push_back(shape);
    }
  }
}

// The same on a GPU, where decode ranges are padded: every shape that they can have, since kernels
// cut keys by it.
std::vector<BatchShape> largest_gpu_steps(const StepShape& s,
                                          const AttentionOptions& attention,
                                          int64_t block_tokens) {
  const int64_t most_pages = ceil_div(s.max_model_len, block_tokens);
  const DecodePadding largest{.requests = decode_bucket(s.max_num_seqs), .pages = most_pages};
  std::vector<BatchShape> shapes = largest_steps(s, attention.prefill_chunk);
  for (BatchShape& shape : shapes)
    shape.padding = largest;
  // Padding comes on top of the token budget, and a prompt of every other sequence may end.
  BatchShape mixed;
  const int64_t most_queries = std::min(s.max_queries, s.max_model_len);
  mixed.decode = {.count = 1, .new_tokens = most_queries, .cached = s.max_model_len - most_queries};
  const int64_t budget = std::min(s.max_num_batched_tokens, s.max_num_seqs * s.max_model_len);
  spread_prompts(budget, std::min(s.max_num_seqs, budget), s.max_model_len, mixed);
  mixed.padding = largest;
  shapes.push_back(mixed);
  // The same with prompts as long as they come: rows of a long one stand side by side.
  BatchShape prompts = fresh_prompts(budget, s.max_model_len);
  prompts.decode = mixed.decode;
  prompts.padding = largest;
  shapes.push_back(prompts);
  for (int64_t queries = 1; queries <= std::min(s.max_queries, s.max_model_len); ++queries) {
    for (const int64_t requests : decode_buckets(s.max_num_seqs)) {
      for (const int64_t pages : page_buckets(most_pages)) {
        const int64_t length = std::min(pages * block_tokens, s.max_model_len);
        if (length < queries) continue;
        BatchShape shape;
        shape.decode = {.count = std::min(requests, s.max_num_seqs),
                        .new_tokens = queries,
                        .cached = length - queries};
        shape.padding = {.requests = requests, .pages = pages};
        shapes.push_back(shape);
      }
    }
  }
  if (attention.always_absorbed) add_absorbed_prompts(s, block_tokens, shapes);
  return shapes;
}

void take_larger(MemoryNeeds& needs, const MemoryNeeds& pass) {
  needs.activation_bytes = std::max(needs.activation_bytes, pass.activation_bytes);
  needs.scratch_bytes = std::max(needs.scratch_bytes, pass.scratch_bytes);
}

Result<MemoryNeeds> largest_pass(const Model& model, const StepShape& shape) {
  const CacheLayout layout = model.cache_layout();
  const AttentionOptions& attention = model.options().attention;
  const auto steps_of = [&](const StepShape& s) {
    return s.gpu == nullptr ? largest_steps(s, attention.prefill_chunk)
                            : largest_gpu_steps(s, attention, layout.block_tokens);
  };
  std::vector<BatchShape> steps = steps_of(shape);
  // Up to index_topk tokens a sequence is attended to in another form.
  if (const int64_t topk = model.config().index_topk; topk > 0 && topk < shape.max_model_len) {
    StepShape dense = shape;
    dense.max_model_len = topk;
    const std::vector<BatchShape> more = steps_of(dense);
    steps.insert(steps.end(), more.begin(), more.end());
  }
  if (shape.trees) {
    const std::vector<BatchShape> chains = steps;
    for (BatchShape step : chains) {
      step.trees = true;
      steps.push_back(step);
    }
  }
  DryRunOptions options{
      .num_threads = shape.num_threads, .kernels = shape.kernels, .gpu = shape.gpu};
  MemoryNeeds needs;
  for (const BatchShape& step : steps) {
    FATHOM_ASSIGN(const MemoryNeeds pass, dry_run(model, step, options));
    take_larger(needs, pass);
  }
  if (shape.gpu != nullptr && attention.always_absorbed) needs.scratch_bytes *= kAbsorbedMargin;
  if (!shape.drafts) return needs;
  options.pass = DryPass::kDraft;
  for (const BatchShape& step : steps) {
    BatchShape draft = step;
    if (shape.all_logits) draft.logits = LogitRows::kAll;
    FATHOM_ASSIGN(const MemoryNeeds pass, dry_run(model, draft, options));
    take_larger(needs, pass);
  }
  const int64_t width = model.state_width() * element_bytes(model.options().activations);
  needs.hidden_bytes = shape.max_tokens() * width;
  return needs;
}

Result<MemoryNeeds> sampler_memory(const Model& model, const StepShape& shape) {
  Arena activations;
  Arena scratch;
  Exec ex;
  ex.backend = Backend::kDry;
  ex.kernels = shape.kernels;
  ex.device = shape.gpu;
  ex.activations = &activations;
  ex.scratch = &scratch;
  ex.num_threads = shape.num_threads;
  const int64_t count = shape.max_logit_rows();
  Sampler sampler(shape.num_ids, count);
  const auto rows = static_cast<size_t>(count);
  std::vector<SampleRow> sample_rows(rows, Sampler::largest_row());
  // On a GPU nothing keeps the raw logits of rows that ask for log-probabilities.
  SamplingParams here = *sample_rows[0].params;
  if (shape.gpu != nullptr) here.top_logprobs = -1;
  for (SampleRow& row : sample_rows)
    row.params = &here;
  std::vector<SampleResult> results(rows);
  const View logits = make_view(nullptr, {count, model.config().vocab_size}, Format::kF32, "R,V");
  FATHOM_TRY(sampler.sample(ex, logits, sample_rows, results));
  // There the choices lie beside the best tokens of each row, and of levels of trees beside the
  // nodes that they lead to: token, row, path and mask.
  const int64_t row_bytes =
      8 + 4 * BestTokens::numbers(kMaxTopLogprobs) + (shape.trees ? 3 * 4 + 8 : 0);
  const int64_t choices =
      shape.gpu == nullptr ? 0 : align_up<int64_t>(row_bytes * count, 64) + 2 * 64;
  return MemoryNeeds{.activation_bytes = activations.high_water() + choices,
                     .scratch_bytes = scratch.high_water()};
}

}  // namespace

Result<MemoryNeeds> step_memory(const Model& model, const StepShape& shape) {
  FATHOM_ASSIGN(MemoryNeeds needs, largest_pass(model, shape));
  // The logits lie in the activation arena, and what sampling takes beside them. The choices of a
  // chain have fewer rows than those of the largest step: most_chained() passes of a row each, or
  // levels of at most max_queries nodes together.
  FATHOM_ASSIGN(const MemoryNeeds sampling, sampler_memory(model, shape));
  needs.activation_bytes += sampling.activation_bytes;
  needs.scratch_bytes = std::max(needs.scratch_bytes, sampling.scratch_bytes);
  return needs;
}

int64_t StepShape::max_logit_rows() const {
  return gpu == nullptr ? max_samples() : max_num_seqs + padded_seqs() * max_queries;
}

int64_t StepShape::padded_seqs() const {
  return gpu == nullptr ? max_num_seqs : decode_bucket(max_num_seqs);
}

void StepShape::reserve(BatchBuffer& batch, const CacheLayout& layout) const {
  batch.reserve(max_tokens(), padded_seqs(), layout.blocks_for(max_model_len), tree_tokens());
}

}  // namespace fathom
