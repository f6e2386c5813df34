#include "fathom/runtime/sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "fathom/base/rng.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/sample/argmax/argmax.h"
#include "fathom/kernels/sample/draw/draw.h"
#include "fathom/kernels/sample/penalty/penalty.h"
#include "fathom/kernels/sample/renorm/renorm.h"

namespace fathom {
namespace {

bool is_altered(const SampleRow& row) {
  return row.params->has_penalties() || !row.params->logit_bias.empty() || !row.banned.empty();
}

View view_of(std::vector<int32_t>& v, size_t count) {
  return make_view(v.data(), {static_cast<int64_t>(count)}, Format::kI32);
}

View view_of(std::vector<float>& v, size_t count) {
  return make_view(v.data(), {static_cast<int64_t>(count)}, Format::kF32);
}

template <class T>
View view_of(std::vector<T>& v) {
  return view_of(v, v.size());
}

// Empties a list that is built anew in each step, with room for `count` entries. Doubling keeps the
// number of allocations logarithmic: a cleared vector would grow by what it needs and no more.
template <class T>
void start_list(std::vector<T>& list, size_t count) {
  constexpr size_t kLeast = 1024;
  list.clear();
  if (list.capacity() < count) list.reserve(std::max(2 * count, kLeast));
}

// log(sum(exp(x))) in float64.
double log_sum_exp(std::span<const float> x) {
  const double top = *std::ranges::max_element(x);
  double sum = 0.0;
  for (float v : x)
    sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

// The `count` largest entries, best first, lower ids first on ties.
size_t largest(std::span<const float> x, size_t count, TokenLogprob* out) {
  const auto better = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  };
  size_t size = 0;
  for (size_t v = 0; v < x.size(); ++v) {
    const TokenLogprob candidate{static_cast<int32_t>(v), x[v]};
    if (size == count) {
      if (count == 0 || !better(candidate, out[size - 1])) continue;
      --size;
    }
    TokenLogprob* place = std::upper_bound(out, out + size, candidate, better);
    std::move_backward(place, out + size, out + size + 1);
    *place = candidate;
    ++size;
  }
  return size;
}

}  // namespace

Sampler::Sampler(int64_t num_ids, int64_t max_rows) : num_ids_(num_ids) {
  FATHOM_CHECK(num_ids > 0 && max_rows >= 0, "a sampler needs ids");
  const auto rows = static_cast<size_t>(max_rows);
  for (auto* v : {&ids_, &bad_raw_, &bad_, &drawn_ids_, &top_k_})
    v->resize(rows);
  for (auto* v :
       {&temperature_, &top_p_, &min_p_, &uniform_, &presence_, &frequency_, &repetition_}) {
    v->resize(rows);
  }
  token_offsets_.reserve(rows + 1);
  bias_offsets_.reserve(rows + 1);
  top_.resize(rows * static_cast<size_t>(kMaxTopLogprobs));
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
  const Features f = look_at(rows);
  return !f.altered && !f.drawn && !f.logprobs;
}

Sampler::Features Sampler::look_at(std::span<const SampleRow> rows) {
  Features f;
  for (const SampleRow& row : rows) {
    f.altered |= is_altered(row);
    f.drawn |= !row.params->greedy();
    f.logprobs |= row.params->top_logprobs >= 0;
  }
  return f;
}

Status Sampler::sample(Exec& ex,
                       const View& all_logits,
                       std::span<const SampleRow> rows,
                       std::span<SampleResult> results) {
  const size_t n = rows.size();
  FATHOM_CHECK(n <= ids_.size() && n == results.size(), "more rows than the sampler has room for");
  FATHOM_CHECK(all_logits.dim(0) == static_cast<int64_t>(n) && all_logits.dim(1) >= num_ids_,
               "a row of logits for each row to sample");
  if (n == 0) return {};
  const View logits = slice_cols(all_logits, 0, num_ids_);
  const Features features = look_at(rows);

  FATHOM_TRY(
      launch<Argmax>(ex, "sample_argmax",
                     {.logits = logits, .ids = view_of(ids_, n), .bad = view_of(bad_raw_, n)}));
  View raw = logits;
  if (features.altered) {
    if (features.logprobs) FATHOM_TRY(keep_raw(ex, logits, raw));
    FATHOM_TRY(apply_penalties(ex, logits, rows));
    FATHOM_TRY(
        launch<Argmax>(ex, "sample_argmax_penalised",
                       {.logits = logits, .ids = view_of(ids_, n), .bad = view_of(bad_, n)}));
  } else {
    std::copy_n(bad_raw_.begin(), n, bad_.begin());
  }
  if (features.drawn) FATHOM_TRY(draw(ex, logits, rows));
  if (ex.dry()) return {};

  for (size_t i = 0; i < n; ++i) {
    results[i] = {};
    results[i].finite = bad_raw_[i] == 0 && bad_[i] == 0;
    if (!results[i].finite) continue;
    results[i].token = rows[i].params->greedy() ? ids_[i] : drawn_ids_[i];
  }
  if (features.logprobs) add_logprobs(ex, raw, rows, results);
  return {};
}

Status Sampler::keep_raw(Exec& ex, const View& logits, View& raw) const {
  FATHOM_ASSIGN(raw, ex.activations->tensor({logits.dim(0), num_ids_}, Format::kF32, "R,V"));
  if (ex.dry()) return {};
  for (int64_t i = 0; i < logits.dim(0); ++i) {
    std::memcpy(raw.row<float>(i), logits.row<float>(i),
                static_cast<size_t>(num_ids_) * sizeof(float));
  }
  return {};
}

Status Sampler::apply_penalties(Exec& ex, const View& logits, std::span<const SampleRow> rows) {
  size_t num_tokens = 0;
  size_t num_biases = 0;
  for (const SampleRow& row : rows) {
    num_tokens += row.params->has_penalties() ? row.counts->tokens().size() : 0;
    num_biases += row.params->logit_bias.size() + row.banned.size();
  }
  start_list(tokens_, num_tokens);
  start_list(counts_, num_tokens);
  start_list(bias_tokens_, num_biases);
  start_list(bias_values_, num_biases);
  token_offsets_.assign(1, 0);
  bias_offsets_.assign(1, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& row = rows[i];
    presence_[i] = row.params->presence_penalty;
    frequency_[i] = row.params->frequency_penalty;
    repetition_[i] = row.params->repetition_penalty;
    if (row.params->has_penalties()) {
      const auto tokens = row.counts->tokens();
      const auto counts = row.counts->counts();
      tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
      counts_.insert(counts_.end(), counts.begin(), counts.end());
    }
    for (const auto& [token, value] : row.params->logit_bias) {
      bias_tokens_.push_back(token);
      bias_values_.push_back(value);
    }
    for (int32_t token : row.banned) {
      bias_tokens_.push_back(token);
      bias_values_.push_back(-std::numeric_limits<float>::infinity());
    }
    token_offsets_.push_back(static_cast<int32_t>(tokens_.size()));
    bias_offsets_.push_back(static_cast<int32_t>(bias_tokens_.size()));
  }
  return launch<Penalty>(ex, "sample_penalty",
                         {.logits = logits,
                          .tokens = view_of(tokens_),
                          .counts = view_of(counts_),
                          .token_offsets = view_of(token_offsets_),
                          .presence = view_of(presence_, rows.size()),
                          .frequency = view_of(frequency_, rows.size()),
                          .repetition = view_of(repetition_, rows.size()),
                          .bias_tokens = view_of(bias_tokens_),
                          .bias_values = view_of(bias_values_),
                          .bias_offsets = view_of(bias_offsets_)});
}

// Every filter runs over every row, off or on: top_p = 1 scales a row, and whether that happens
// must not depend on the neighbours. (top_k = V copies.)
Status Sampler::draw(Exec& ex, const View& logits, std::span<const SampleRow> rows) {
  const size_t n = rows.size();
  bool any_top_k = false;
  for (size_t i = 0; i < n; ++i) {
    const SamplingParams& p = *rows[i].params;
    const bool greedy = p.greedy();
    const bool limited = !greedy && p.top_k > 0 && p.top_k < num_ids_;
    any_top_k |= limited;
    temperature_[i] = p.temperature;
    top_k_[i] = static_cast<int32_t>(limited ? p.top_k : num_ids_);
    top_p_[i] = greedy ? 1.0f : p.top_p;
    min_p_[i] = greedy ? 0.0f : p.min_p;
    uniform_[i] =
        Rng(rows[i].seed, rows[i].stream, static_cast<uint64_t>(rows[i].position)).next_uniform();
  }
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const View probs,
                ex.activations->tensor({static_cast<int64_t>(n), num_ids_}, Format::kF32, "R,V"));
  FATHOM_TRY(launch<SoftmaxTemperature>(
      ex, "sample_softmax",
      {.logits = logits, .temperature = view_of(temperature_, n), .probs = probs}));
  if (any_top_k) {
    FATHOM_TRY(launch<RenormTopK>(ex, "sample_top_k",
                                  {.probs = probs, .k = view_of(top_k_, n), .y = probs}));
  }
  FATHOM_TRY(launch<RenormTopP>(ex, "sample_top_p",
                                {.probs = probs, .p = view_of(top_p_, n), .y = probs}));
  return launch<SampleMinP>(ex, "sample_min_p",
                            {.probs = probs,
                             .min_p = view_of(min_p_, n),
                             .uniform = view_of(uniform_, n),
                             .ids = view_of(drawn_ids_, n)});
}

void Sampler::add_logprobs(Exec& ex,
                           const View& raw,
                           std::span<const SampleRow> rows,
                           std::span<SampleResult> results) {
  const auto of_row = [&](size_t i) {
    SampleResult& r = results[i];
    if (rows[i].params->top_logprobs < 0 || !r.finite) return;
    const std::span<const float> x(raw.row<float>(static_cast<int64_t>(i)),
                                   static_cast<size_t>(num_ids_));
    const double norm = log_sum_exp(x);
    TokenLogprob* top = &top_[i * static_cast<size_t>(kMaxTopLogprobs)];
    const size_t count = largest(x, static_cast<size_t>(rows[i].params->top_logprobs), top);
    for (size_t j = 0; j < count; ++j) {
      top[j].logprob = static_cast<float>(static_cast<double>(top[j].logprob) - norm);
    }
    r.logprob = static_cast<float>(static_cast<double>(x[static_cast<size_t>(r.token)]) - norm);
    r.top_logprobs = {top, count};
  };
  ex.pool->for_blocks(static_cast<int64_t>(rows.size()),
                      [&](int64_t i) { of_row(static_cast<size_t>(i)); });
}

}  // namespace fathom
