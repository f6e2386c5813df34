#include "fathom/runtime/sample/sampler.h"

#include <algorithm>
#include <cstring>

#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/sample/argmax/argmax.h"
#include "fathom/kernels/sample/from_logits/from_logits.h"
#include "fathom/kernels/sample/penalty/penalty.h"
#include "fathom/kernels/sample/token_mask/token_mask.h"

namespace fathom {
namespace {

// A view as records of the call name its axes.
View named(View v, const char* axes) {
  v.axes = axes;
  return v;
}

}  // namespace

Status sample(
    Exec& ex, const View& all_logits, const SampleBatch& batch, const View& ids, const View& bad) {
  const View logits = named(slice_cols(all_logits, 0, batch.num_ids),
                            batch.num_ids == all_logits.dim(1) ? "R,V" : "R,ids");
  if (batch.altered) {
    FATHOM_TRY(launch<Penalty>(ex, "sample_penalty",
                               {.logits = logits,
                                .tokens = named(batch.tokens, "listed"),
                                .counts = named(batch.counts, "listed"),
                                .token_offsets = batch.token_offsets,
                                .presence = batch.presence,
                                .frequency = batch.frequency,
                                .repetition = batch.repetition,
                                .bias_tokens = named(batch.bias_tokens, "biased"),
                                .bias_values = named(batch.bias_values, "biased"),
                                .bias_offsets = batch.bias_offsets}));
  }
  if (batch.masked) {
    FATHOM_TRY(launch<ApplyTokenMask>(ex, "sample_mask",
                                      {.logits = logits,
                                       .mask = named(batch.mask, "masks,words"),
                                       .mask_of_row = batch.mask_of_row}));
  }
  if (!batch.drawn) {
    return launch<Argmax>(ex, "sample_argmax", {.logits = logits, .ids = ids, .bad = bad});
  }
  return launch<SampleFromLogits>(ex, "sample_draw",
                                  {.logits = logits,
                                   .temperature = batch.temperature,
                                   .top_k = batch.top_k,
                                   .top_p = batch.top_p,
                                   .min_p = batch.min_p,
                                   .uniform = batch.uniform,
                                   .ids = ids,
                                   .bad = bad});
}

void take_results(std::span<const int32_t> ids,
                  std::span<const int32_t> bad,
                  std::span<SampleResult> results) {
  for (size_t i = 0; i < results.size(); ++i) {
    results[i] = {};
    results[i].finite = bad[i] == 0;
    if (results[i].finite) results[i].token = ids[i];
  }
}

Sampler::Sampler(int64_t num_ids, int64_t max_rows)
    : num_ids_(num_ids),
      room_{.rows = max_rows, .words = max_rows * mask_words(num_ids)},
      logprobs_(max_rows) {
  FATHOM_CHECK(num_ids > 0 && max_rows >= 0, "a sampler needs ids");
  const auto rows = static_cast<size_t>(max_rows);
  block_.resize(static_cast<size_t>(room_.bytes()));
  ids_.resize(rows);
  bad_.resize(rows);
  raw_.resize(rows);
}

SampleRow Sampler::largest_row() {
  static const SamplingParams params = [] {
    SamplingParams p;
    p.repetition_penalty = 2.0f;
    p.top_p = 0.5f;
    p.top_k = 1;
    p.top_logprobs = kMaxTopLogprobs;
    return p;
  }();
  static const TokenCounts counts;
  return {.params = &params, .counts = &counts, .banned = {}};
}

bool Sampler::only_largest(std::span<const SampleRow> rows) {
  return std::ranges::none_of(rows, [](const SampleRow& row) {
    const SamplingParams& p = *row.params;
    return p.has_penalties() || !p.logit_bias.empty() || !row.banned.empty() || !row.mask.empty() ||
           !row.greedy() || asks_for_logprobs(row);
  });
}

// Doubling keeps the number of allocations logarithmic.
void Sampler::make_room(const SampleRoom& needed) {
  if (room_.holds(needed)) return;
  const auto grown = [](int64_t now, int64_t wanted) {
    constexpr int64_t kLeast = 1024;
    return wanted <= now ? now : std::max(2 * wanted, kLeast);
  };
  room_.listed = grown(room_.listed, needed.listed);
  room_.biased = grown(room_.biased, needed.biased);
  block_.resize(static_cast<size_t>(room_.bytes()));
}

Status Sampler::sample(Exec& ex,
                       const View& logits,
                       std::span<const SampleRow> rows,
                       std::span<SampleResult> results) {
  const size_t n = rows.size();
  FATHOM_CHECK(n <= ids_.size() && n == results.size(), "more rows than the sampler has room for");
  FATHOM_CHECK(logits.dim(0) == static_cast<int64_t>(n) && logits.dim(1) >= num_ids_,
               "a row of logits for each row to sample");
  if (n == 0) return {};
  const auto count = static_cast<int64_t>(n);
  make_room(room_of(rows));
  const SampleBatch batch = pack_samples(block_.data(), room_, rows, count, num_ids_);
  const bool logprobs = std::ranges::any_of(rows, asks_for_logprobs);
  if (logprobs) FATHOM_TRY(keep_raw(ex, logits, batch, rows));
  FATHOM_TRY(fathom::sample(ex, logits, batch, make_view(ids_.data(), {count}, Format::kI32),
                            make_view(bad_.data(), {count}, Format::kI32)));
  if (ex.dry()) return {};
  take_results(ids_, bad_, results);
  if (logprobs) logprobs_.add(*ex.pool, std::span(raw_).first(n), num_ids_, rows, results);
  return {};
}

// Raw logits stay where they are unless penalties, biases or masks will change them.
Status Sampler::keep_raw(Exec& ex,
                         const View& logits,
                         const SampleBatch& batch,
                         std::span<const SampleRow> rows) {
  View kept;
  const bool changed = batch.altered || batch.masked;
  if (changed) {
    const auto count = std::ranges::count_if(rows, asks_for_logprobs);
    FATHOM_ASSIGN(kept, ex.activations->tensor({count, num_ids_}, Format::kF32, "R,V"));
  }
  if (ex.dry()) return {};
  int64_t next = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    raw_[i] = nullptr;
    if (!asks_for_logprobs(rows[i])) continue;
    const auto* row = logits.row<const float>(static_cast<int64_t>(i));
    raw_[i] = row;
    if (!changed) continue;
    auto* copy = kept.row<float>(next++);
    std::memcpy(copy, row, static_cast<size_t>(num_ids_) * sizeof(float));
    raw_[i] = copy;
  }
  return {};
}

}  // namespace fathom
