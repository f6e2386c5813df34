// Evaluation of a model: perplexity of a text, and comparison with the stored outputs of a
// reference implementation.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/runtime/forward_session.h"

namespace fathom {

struct Perplexity {
  double nll = 0;      ///< sum of -ln p, natural logarithm
  int64_t tokens = 0;  ///< scored
  std::vector<double> block_nll;

  double value() const;  ///< exp(nll / tokens)
};

/// Cuts ids into blocks, puts `bos` before each, and scores every id once, in the context of its
/// block. `progress(done, total)` counts tokens; where it says false, what is scored so far comes
/// back. Errors: InvalidArgument for no ids and for an id beyond the vocabulary.
Result<Perplexity> perplexity(ForwardSession& session,
                              std::span<const int32_t> ids,
                              int32_t bos,
                              int64_t block,
                              const std::function<bool(int64_t, int64_t)>& progress);

/// -ln softmax(row)[id], summed in double.
double negative_log_likelihood(std::span<const float> row, int32_t id);

/// What the comparison of one prompt found.
struct PromptComparison {
  std::string name;  ///< "p2", "mtp"
  int64_t tokens = 0;
  double max_abs_logit = 0;  ///< over the stored rows; infinite where a logit is NaN
  double min_cosine = 1;     ///< of a stored row; -1 where a logit is not finite
  double dot = 0;            ///< over all stored rows: found . expected, |found|^2, |expected|^2
  double found_norm = 0;
  double expected_norm = 0;
  double kl_sum = 0;      ///< sum over the stored rows of KL(expected || found), in nats
  int64_t rows = 0;       ///< stored rows
  int64_t same_top1 = 0;  ///< positions whose first choice agrees
  int64_t positions = 0;
  int64_t greedy_equal = -1;     ///< tokens equal from the start; -1: not run
  int64_t greedy_required = -1;  ///< tokens before the first stored gap below the tolerance
};

struct VectorComparison {
  std::vector<PromptComparison> prompts;
  double max_abs_hidden = 0;   ///< residual stream and final norm, prompt 2; infinite for NaN
  int64_t router_choices = 0;  ///< token and layer pairs compared
  int64_t router_equal = 0;
  double max_abs_router_weight = 0;
  bool has_draft = false;

  double max_abs_logit() const;
  /// Of all stored logits of all prompts, taken as one vector.
  double cosine() const;
  /// Of the worst row. One token whose router picks another expert decides it.
  double min_cosine() const;
  /// Of a stored row; infinite where a logit is not finite.
  double mean_kl() const;
  double top1_share() const;
};

struct VectorBudget {
  double max_abs_logit = 2e-3;                              ///< where all runs in float32
  double min_cosine = 0.9995;                               ///< of all logits
  double max_kl = std::numeric_limits<double>::infinity();  ///< mean of the stored rows, nats
  double min_top1_share = 0.98;
  double greedy_gap = 1e-3;  ///< greedy runs may part where the stored gap is smaller
};

/// True of models with an indexer: V3.2 and V4.
bool chooses_rows(const ModelConfig& config);

/// True where activations, KV cache and indexer are float32, as the reference outputs were made.
bool runs_in_float32(const Model& model);

/// Of this model where not all is float32. Sparse attention that picks one other row moves logits
/// far and hardly any prediction, so there the mean KL stands in for the cosine.
VectorBudget vector_budget(const Model& model);

/// The lines that miss the budget; empty if none does. In float32 logits, router choices and greedy
/// tokens count; else cosine, KL and first choices; with both, that what was found is finite.
std::vector<std::string> check_vectors(const VectorComparison& c,
                                       const VectorBudget& budget,
                                       bool float32);

/// Runs every prompt of a golden.safetensors (tests/golden/README.md says what is in it) and
/// compares. The session has room for the longest prompt and 64 more tokens, with all logits; it is
/// reset. Errors: NotFound, Corrupt for a file that lacks tensors or holds a number that is not
/// finite, and those of the model.
Result<VectorComparison> compare_vectors(const Model& model,
                                         ForwardSession& session,
                                         const std::string& golden_file,
                                         const VectorBudget& budget);

}  // namespace fathom
