#include "fathom/runtime/eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/formats/minifloat.h"
#include "fathom/runtime/eval/compare_logits.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/checkpoint/linear_format.h"

namespace fathom {
namespace {

constexpr int64_t kTapPrompt = 2;

// A dense tensor of the golden file as [rows, columns].
template <class T>
struct Table {
  std::vector<T> values;
  int64_t rows = 0;
  int64_t columns = 1;

  std::span<const T> row(int64_t i) const {
    return std::span(values).subspan(static_cast<size_t>(i * columns),
                                     static_cast<size_t>(columns));
  }
};

// What a reader of a table relies on.
struct TableShape {
  int64_t min_rows = 0;
  int64_t columns = 0;   // 0: any number but none
  bool streams = false;  // [T, n, H]: a row is the residual streams of a token, one after another
};

template <class T>
Result<Table<T>> read_table(const Checkpoint& golden,
                            const std::string& name,
                            Format dtype,
                            TableShape wanted) {
  FATHOM_ASSIGN(const TensorRef* const ref, golden.get(name));
  const std::vector<int64_t>& shape = ref->entry.shape;
  Table<T> table;
  if (!shape.empty()) table.rows = shape[0];
  for (size_t i = 1; i < shape.size(); ++i)
    table.columns *= shape[i];
  const size_t axes = wanted.streams ? 3 : 2;
  const bool fits = !shape.empty() && shape.size() <= axes && table.rows >= wanted.min_rows &&
                    table.columns >= 1 && (wanted.columns == 0 || table.columns == wanted.columns);
  if (ref->entry.dtype != dtype || !fits) {
    return corrupt(str_cat(golden.locate(*ref), " is ", describe_tensor(ref->entry.dtype, shape),
                           ", expected ", dtype_name(dtype), " with rows >= ", wanted.min_rows,
                           " and columns ", wanted.columns == 0 ? ">= " : "= ",
                           std::max<int64_t>(wanted.columns, 1)));
  }
  table.values.resize(static_cast<size_t>(table.rows * table.columns));
  const auto bytes = std::as_writable_bytes(std::span(table.values));
  FATHOM_TRY(golden.read(*ref, bytes));
  // Differences from NaN or infinity say nothing.
  if (dtype == Format::kF32) FATHOM_TRY(check_finite_values(golden, *ref, bytes, 0));
  return table;
}

int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

std::span<const float> logits_row(const View& logits, int64_t row) {
  return {logits.row<float>(row), static_cast<size_t>(logits.dim(1))};
}

double cosine_of(double dot, double norm_a, double norm_b) {
  return dot / std::sqrt(std::max(norm_a * norm_b, 1e-300));
}

// NaN counts as the worst there is; std::max and std::min would drop it.
double larger_error(double worst, double error) {
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
}

double smaller_cosine(double worst, double cosine) {
  return std::isnan(cosine) ? -1.0 : std::min(worst, cosine);
}

void compare_row(std::span<const float> found,
                 std::span<const float> expected,
                 PromptComparison& out) {
  LogitComparison row;
  add_position(expected, found, row);
  out.kl_sum += std::isnan(row.kl_sum) ? std::numeric_limits<double>::infinity() : row.kl_sum;
  ++out.rows;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i]));
    out.max_abs_logit = larger_error(out.max_abs_logit, error);
  }
  out.dot += row.dot;
  out.found_norm += row.other_norm;
  out.expected_norm += row.reference_norm;
  out.min_cosine = smaller_cosine(out.min_cosine, row.cosine());
}

// Stored logits of some rows and first choices of all of them, against logits of positions
// first .. first + logits.rows - 1.
struct StoredLogits {
  Table<float> logits;
  Table<int32_t> rows;
  Table<int32_t> top_ids;

  void compare(int64_t first, const View& found, PromptComparison& out) const {
    for (int64_t i = 0; i < rows.rows; ++i) {
      const int64_t position = rows.values[static_cast<size_t>(i)];
      if (position < first || position >= first + found.dim(0)) continue;
      compare_row(logits_row(found, position - first), logits.row(i), out);
    }
    for (int64_t r = 0; r < found.dim(0) && first + r < top_ids.rows; ++r) {
      ++out.positions;
      if (argmax(logits_row(found, r)) == top_ids.row(first + r)[0]) ++out.same_top1;
    }
  }
};

Result<StoredLogits> read_logits(const Checkpoint& golden,
                                 const std::string& prefix,
                                 int64_t vocabulary) {
  StoredLogits out;
  FATHOM_ASSIGN(out.rows,
                read_table<int32_t>(golden, prefix + ".logits_rows", Format::kI32, {.columns = 1}));
  FATHOM_ASSIGN(out.logits, read_table<float>(golden, prefix + ".logits", Format::kF32,
                                              {.min_rows = out.rows.rows, .columns = vocabulary}));
  FATHOM_ASSIGN(out.top_ids, read_table<int32_t>(golden, prefix + ".top_ids", Format::kI32, {}));
  return out;
}

// The ids of a prompt, all of them in the vocabulary.
Result<Table<int32_t>> read_ids(const Checkpoint& golden,
                                const std::string& name,
                                int64_t vocabulary) {
  FATHOM_ASSIGN(Table<int32_t> ids,
                read_table<int32_t>(golden, name, Format::kI32, {.min_rows = 1, .columns = 1}));
  for (size_t i = 0; i < ids.values.size(); ++i) {
    if (ids.values[i] >= 0 && ids.values[i] < vocabulary) continue;
    return corrupt(str_cat(golden.locate(**golden.get(name)), ": id ", i, " is ", ids.values[i],
                           ", expected 0 to ", vocabulary - 1));
  }
  return ids;
}

// Compares tapped tensors of prompt 2 as they come by.
class GoldenTaps {
 public:
  GoldenTaps(const Checkpoint& golden, VectorComparison& out, int64_t num_layers)
      : golden_(golden), out_(out), num_layers_(num_layers) {}

  Probe probe() {
    return {.tap = [](void* self, std::string_view name, int layer,
                      const View& v) { static_cast<GoldenTaps*>(self)->take(name, layer, v); },
            .self = this};
  }

  Status status() && { return std::move(status_); }

 private:
  void take(std::string_view name, int layer, const View& v) {
    if (!status_.ok()) return;
    if (name == "layer.input" || name == "final.input") {
      // What enters layer l is what left layer l-1; layer 0 reads the embedding.
      status_ =
          hidden(layer == 0 ? std::string("hidden.embed") : str_cat("hidden.layer", layer - 1), v);
    } else if (name == "final.norm") {
      status_ = hidden("hidden.final_norm", v);
    } else if (name == "router.ids" && layer < num_layers_) {
      status_ = router_ids(layer, v);
    } else if (name == "router.weights" && layer < num_layers_) {
      status_ = router_weights(layer, v);
    }
  }

  Status hidden(const std::string& name, const View& v) {
    FATHOM_ASSIGN(const auto expected, read_table<float>(golden_, name, Format::kF32,
                                                         {.columns = v.dim(1), .streams = true}));
    for (int64_t t = 0; t < std::min(expected.rows, v.dim(0)); ++t) {
      for (int64_t d = 0; d < expected.columns; ++d) {
        const double error = std::abs(static_cast<double>(tapped_element(v, t, d)) -
                                      static_cast<double>(expected.row(t)[static_cast<size_t>(d)]));
        out_.max_abs_hidden = larger_error(out_.max_abs_hidden, error);
      }
    }
    return {};
  }

  // The stored ids are sorted; so are ours, with their order kept for the weights.
  Status router_ids(int layer, const View& v) {
    FATHOM_ASSIGN(expected_ids_,
                  read_table<int32_t>(golden_, str_cat("router.layer", layer, ".ids"), Format::kI32,
                                      {.min_rows = v.dim(0), .columns = v.dim(1)}));
    const auto k = static_cast<size_t>(v.dim(1));
    order_.assign(static_cast<size_t>(v.dim(0)), {});
    for (int64_t t = 0; t < v.dim(0); ++t) {
      const int32_t* ids = v.row<int32_t>(t);
      auto& order = order_[static_cast<size_t>(t)];
      order.resize(k);
      for (size_t i = 0; i < k; ++i)
        order[i] = i;
      std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ids[a] < ids[b]; });
      bool equal = true;
      for (size_t i = 0; i < k; ++i)
        equal &= ids[order[i]] == expected_ids_.row(t)[i];
      ++out_.router_choices;
      out_.router_equal += equal ? 1 : 0;
      if (!equal) order.clear();  // its weights belong to other experts
    }
    return {};
  }

  Status router_weights(int layer, const View& v) {
    FATHOM_ASSIGN(const auto expected,
                  read_table<float>(golden_, str_cat("router.layer", layer, ".weights"),
                                    Format::kF32, {.min_rows = v.dim(0), .columns = v.dim(1)}));
    for (int64_t t = 0; t < v.dim(0); ++t) {
      const auto& order = order_[static_cast<size_t>(t)];
      for (size_t i = 0; i < order.size(); ++i) {
        const double error = std::abs(static_cast<double>(v.row<float>(t)[order[i]]) -
                                      static_cast<double>(expected.row(t)[i]));
        out_.max_abs_router_weight = larger_error(out_.max_abs_router_weight, error);
      }
    }
    return {};
  }

  const Checkpoint& golden_;
  VectorComparison& out_;
  int64_t num_layers_;
  Table<int32_t> expected_ids_;
  std::vector<std::vector<size_t>> order_;  // [T] positions of a token's ids in ascending order
  Status status_;
};

// Continues greedily from the logits of the prompt's last token.
Status compare_greedy(ForwardSession& session,
                      const Checkpoint& golden,
                      const std::string& prefix,
                      int32_t first_choice,
                      const VectorBudget& budget,
                      PromptComparison& out) {
  FATHOM_ASSIGN(const auto ids,
                read_table<int32_t>(golden, prefix + ".greedy_ids", Format::kI32, {.columns = 1}));
  FATHOM_ASSIGN(const auto gaps,
                read_table<float>(golden, prefix + ".greedy_gap", Format::kF32, {.columns = 1}));
  out.greedy_required = std::find_if(gaps.values.begin(), gaps.values.end(),
                                     [&](float gap) { return gap < budget.greedy_gap; }) -
                        gaps.values.begin();
  out.greedy_equal = 0;
  int32_t token = first_choice;
  while (out.greedy_equal < ids.rows &&
         token == ids.values[static_cast<size_t>(out.greedy_equal)]) {
    if (++out.greedy_equal == ids.rows) break;
    FATHOM_ASSIGN(const View logits, session.decode(std::span(&token, 1)));
    token = argmax(logits_row(logits, 0));
  }
  return {};
}

// The draft head over prompt 2: row i takes the state of position i and token i+1.
Status compare_draft(ForwardSession& session,
                     const Checkpoint& golden,
                     std::span<const int32_t> ids,
                     const View& hidden,
                     int64_t vocabulary,
                     PromptComparison& out) {
  const auto count = static_cast<int64_t>(ids.size());
  if (count < 2 || hidden.dim(0) != count) {
    return corrupt(str_cat("p", kTapPrompt, ".input_ids: ", count,
                           " ids, of which the last pass had ", hidden.dim(0),
                           ", expected at least 2 in one pass for the draft head"));
  }
  FATHOM_ASSIGN(const StoredLogits stored, read_logits(golden, "mtp", vocabulary));
  const View rows = slice_rows(hidden, 0, count - 1);
  FATHOM_ASSIGN(const StepResults draft, session.draft(ids.subspan(1), rows));
  out.name = "mtp";
  out.tokens = rows.dim(0);
  stored.compare(0, draft.logits, out);
  return {};
}

}  // namespace

double Perplexity::value() const {
  return tokens > 0 ? std::exp(nll / static_cast<double>(tokens)) : 0.0;
}

double negative_log_likelihood(std::span<const float> row, int32_t id) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (float x : row)
    sum += std::exp(static_cast<double>(x) - largest);
  return largest + std::log(sum) - static_cast<double>(row[static_cast<size_t>(id)]);
}

Result<Perplexity> perplexity(ForwardSession& session,
                              std::span<const int32_t> ids,
                              int32_t bos,
                              int64_t block,
                              const std::function<bool(int64_t, int64_t)>& progress) {
  if (ids.empty()) return invalid_argument("the text has no tokens");
  const auto total = static_cast<int64_t>(ids.size());
  Perplexity out;
  for (int64_t begin = 0; begin < total; begin += block) {
    const auto scored = ids.subspan(static_cast<size_t>(begin),
                                    static_cast<size_t>(std::min(block, total - begin)));
    std::vector<int32_t> tokens{bos};  // the last id is predicted, not read
    tokens.insert(tokens.end(), scored.begin(), scored.end() - 1);
    double nll = 0;
    session.reset();
    FATHOM_TRY(
        session.prefill(0, tokens, LogitRows::kAll, [&](int64_t first, const StepResults& pass) {
          for (int64_t r = 0; r < pass.logits.dim(0); ++r) {
            const int32_t id = scored[static_cast<size_t>(first + r)];
            if (id < 0 || id >= pass.logits.dim(1)) {
              return invalid_argument(str_cat("the text has the id ", id, ", expected 0 to ",
                                              pass.logits.dim(1) - 1, ", the model's vocabulary"));
            }
            nll += negative_log_likelihood(logits_row(pass.logits, r), id);
          }
          return Status{};
        }));
    out.block_nll.push_back(nll);
    out.nll += nll;
    out.tokens += static_cast<int64_t>(scored.size());
    if (progress && !progress(out.tokens, total)) break;
  }
  if (!std::isfinite(out.nll)) return numerical_error("the logits are not finite");
  return out;
}

double VectorComparison::max_abs_logit() const {
  double worst = 0;
  for (const auto& p : prompts)
    worst = std::max(worst, p.max_abs_logit);
  return worst;
}

double VectorComparison::cosine() const {
  double dot = 0;
  double found = 0;
  double expected = 0;
  for (const auto& p : prompts) {
    dot += p.dot;
    found += p.found_norm;
    expected += p.expected_norm;
  }
  return cosine_of(dot, found, expected);
}

double VectorComparison::min_cosine() const {
  double worst = 1;
  for (const auto& p : prompts)
    worst = std::min(worst, p.min_cosine);
  return worst;
}

double VectorComparison::mean_kl() const {
  double sum = 0;
  int64_t rows = 0;
  for (const auto& p : prompts) {
    sum += p.kl_sum;
    rows += p.rows;
  }
  return rows > 0 ? sum / static_cast<double>(rows) : 0.0;
}

double VectorComparison::top1_share() const {
  int64_t same = 0;
  int64_t all = 0;
  for (const auto& p : prompts) {
    same += p.same_top1;
    all += p.positions;
  }
  return all > 0 ? static_cast<double>(same) / static_cast<double>(all) : 0.0;
}

bool chooses_rows(const ModelConfig& config) {
  return config.is_v4() || config.has_indexer();
}

bool runs_in_float32(const Model& model) {
  const ModelConfig& c = model.config();
  const ModelOptions& o = model.options();
  return o.activations == Format::kF32 && o.cache_format() == Format::kF32 &&
         (!chooses_rows(c) || o.index_format(c) == Format::kF32);
}

VectorBudget vector_budget(const Model& model) {
  if (!chooses_rows(model.config())) return {};
  // Rows of the cache with four bits a channel: docs/numerics.md.
  if (model.options().cache_format() == Format::kNvfp4)
    return {.min_cosine = 0, .max_kl = 2e-2, .min_top1_share = 0.9};
  return {.min_cosine = 0, .max_kl = 3e-3, .min_top1_share = 0.96};
}

std::vector<std::string> check_vectors(const VectorComparison& c,
                                       const VectorBudget& budget,
                                       bool float32) {
  std::vector<std::string> missed;
  // How far they may be off depends on the model, but not whether they are numbers.
  if (!std::isfinite(c.max_abs_hidden)) missed.push_back("the hidden states are not finite");
  if (!std::isfinite(c.max_abs_router_weight)) {
    missed.push_back("the weights of the router are not finite");
  }
  if (!float32) {
    if (!(c.cosine() >= budget.min_cosine)) {
      missed.push_back(str_cat("cosine ", c.cosine(), " is below ", budget.min_cosine));
    }
    if (!(c.mean_kl() <= budget.max_kl)) {
      missed.push_back(
          str_cat("mean KL ", c.mean_kl(), " nats exceeds ", budget.max_kl, " (--max-kl)"));
    }
    if (c.top1_share() < budget.min_top1_share) {
      missed.push_back(str_cat("first choices agree in ", 100 * c.top1_share(),
                               " % of the positions, expected ", 100 * budget.min_top1_share,
                               " % (--min-top1)"));
    }
    return missed;
  }
  for (const PromptComparison& p : c.prompts) {
    if (!(p.max_abs_logit <= budget.max_abs_logit)) {
      missed.push_back(str_cat(p.name, ": largest logit difference ", p.max_abs_logit, " exceeds ",
                               budget.max_abs_logit));
    }
    if (p.greedy_equal < p.greedy_required) {
      missed.push_back(str_cat(p.name, ": greedy tokens are equal up to ", p.greedy_equal,
                               ", expected up to ", p.greedy_required));
    }
  }
  if (c.router_equal != c.router_choices) {
    missed.push_back(str_cat("router: ", c.router_choices - c.router_equal, " of ",
                             c.router_choices, " choices differ"));
  }
  return missed;
}

Result<VectorComparison> compare_vectors(const Model& model,
                                         ForwardSession& session,
                                         const std::string& golden_file,
                                         const VectorBudget& budget) {
  FATHOM_ASSIGN(const Checkpoint golden, Checkpoint::open_file(golden_file));
  const int64_t vocabulary = model.config().vocab_size;
  VectorComparison out;
  GoldenTaps taps(golden, out, model.config().num_hidden_layers);
  const Probe probe = taps.probe();
  for (int64_t k = 0; golden.find(str_cat("p", k, ".input_ids")) != nullptr; ++k) {
    const std::string prefix = str_cat("p", k);
    FATHOM_ASSIGN(const auto ids, read_ids(golden, prefix + ".input_ids", vocabulary));
    FATHOM_ASSIGN(const StoredLogits stored, read_logits(golden, prefix, vocabulary));
    PromptComparison prompt{.name = prefix, .tokens = ids.rows};
    int32_t choice = -1;
    View hidden;
    session.reset();
    FATHOM_TRY(session.prefill(
        0, ids.values, LogitRows::kAll,
        [&](int64_t first, const StepResults& pass) {
          stored.compare(first, pass.logits, prompt);
          choice = argmax(logits_row(pass.logits, pass.logits.dim(0) - 1));
          hidden = pass.hidden;
          return Status{};
        },
        k == kTapPrompt ? &probe : nullptr));
    if (k == kTapPrompt && model.has_draft() && golden.find("mtp.logits") != nullptr) {
      PromptComparison draft;
      FATHOM_TRY(compare_draft(session, golden, ids.values, hidden, vocabulary, draft));
      out.prompts.push_back(draft);
      out.has_draft = true;
    }
    FATHOM_TRY(compare_greedy(session, golden, prefix, choice, budget, prompt));
    out.prompts.push_back(prompt);
  }
  FATHOM_TRY(std::move(taps).status());
  if (out.prompts.empty()) {
    return corrupt(
        str_cat(golden_file, ": tensor p0.input_ids is missing, expected golden vectors"));
  }
  return out;
}

}  // namespace fathom
