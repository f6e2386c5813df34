// Engine: a model that is loaded and ready, for C++ programs.
//
//   EngineOptions options;
//   options.model = "models/tiny-v3";
//   FATHOM_ASSIGN(auto engine, Engine::load(options));
//   SamplingParams params;
//   params.max_tokens = 64;
//   FATHOM_TRY(engine->generate("Once upon a time", params, [](const TextDelta& d) {
//     fwrite(d.text.data(), 1, d.text.size(), stdout);
//     return Flow::kContinue;
//   }));
//
// generate() runs one request to its end. submit(), step() and cancel() are for callers with many:
// a server calls step() in a loop on one thread. Nothing here is thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/api/open.h"
#include "fathom/runtime/engine.h"
#include "fathom/runtime/memory_plan.h"
#include "fathom/runtime/request.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

/// What an engine reports while it loads: bytes of weights.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

/// News about the answer: the token, the text that became certain, log-probabilities if asked for.
using TextDelta = TokenEvent;

enum class Flow : uint8_t { kContinue, kStop };

using TextCallback = std::function<Flow(const TextDelta&)>;

/// A finished answer.
struct Completion {
  std::vector<int32_t> tokens;  ///< an end token included
  std::string text;
  FinishReason finish = FinishReason::kNone;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;    ///< of the prompt, found in the prefix cache
  int64_t drafted_tokens = 0;   ///< computed as drafts (--speculative)
  int64_t accepted_tokens = 0;  ///< of them, those that were right
  double first_token_s = 0.0;   ///< from the call to the first token
  double total_s = 0.0;
};

/// The values of a generation_config.json over those of SamplingParams.
SamplingParams sampling_defaults(const GenerationConfig& generation);

/// What an engine answers with: a model, and the vocabulary of its texts.
struct EngineSource {
  ModelSource model;
  std::optional<Tokenizer> tokenizer;  ///< absent: a preset

  /// Opens what the options name. Errors: those of open_source and Tokenizer::load.
  static Result<EngineSource> open(const EngineOptions& options);
};

/// Refuses a tokenizer with ids beyond the vocabulary of the model. Errors: Corrupt with both.
Status check_vocabulary(const EngineSource& source, const EngineOptions& options);

class Engine {
 public:
  /// Checks the options, plans the memory and refuses what does not fit before any weight is read,
  /// then loads. Errors: those of validate, set_up_machine, EngineSource::open, open_model and
  /// plan_memory.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options,
                                              const LoadProgress& progress = {});

  /// The same of a source that is open.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options,
                                              EngineSource source,
                                              const LoadProgress& progress = {});

  /// The memory plan for these options without loading anything. Pages are planned as load() does.
  static Result<MemoryPlan> plan(const EngineOptions& options);

  /// The same of a source that is open, which load() may take behind it.
  static Result<MemoryPlan> plan(const EngineOptions& options, const EngineSource& source);

  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Answers a prompt of token ids. `on_text` may be empty; Flow::kStop ends the answer, which is
  /// then complete with reason aborted. `between_steps` says the same where no text comes for long:
  /// between the chunks of a long prompt. Other submitted requests go on meanwhile. Errors:
  /// InvalidArgument for a request that is refused; Numerical for logits that are not finite; an
  /// engine fault.
  Result<Completion> generate(std::span<const int32_t> prompt,
                              const SamplingParams& params,
                              const TextCallback& on_text = {},
                              const std::function<Flow()>& between_steps = {});

  /// The same for a text, encoded with the beginning token as the tokenizer's configuration says.
  /// Names of control tokens in the text stay text. Errors: also Unsupported without a tokenizer.
  Result<Completion> generate(std::string_view prompt,
                              const SamplingParams& params,
                              const TextCallback& on_text = {});

  /// Queues a request with the timeouts of the options where it has none of its own.
  Result<RequestId> submit(Request request);

  Status step() { return core_->step(); }

  bool cancel(RequestId id) { return core_->cancel(id); }

  bool idle() const { return core_->idle(); }

  /// Calls on_row(position, logits) with the raw logits [V] of every position in turn; they live
  /// during the call. Keeps the rows of one pass only, whatever the length. It has pages and arenas
  /// of its own for the time of the call. Errors: InvalidArgument for no ids, ids outside the
  /// vocabulary and more than the model's context; OutOfMemory; what on_row returns.
  using RowCallback = std::function<Status(int64_t position, std::span<const float> logits)>;
  Status score(std::span<const int32_t> ids, const RowCallback& on_row);

  /// -ln p(ids[i] | ids[0..i-1]) for i = 1 .. n-1, natural logarithm, summed in float64.
  Result<std::vector<double>> token_nll(std::span<const int32_t> ids);

  const Model& model() const { return *model_; }

  ThreadPool& threads() { return *machine_.pool; }

  /// Where the model runs.
  const Machine& machine() const { return machine_; }

  /// Null for a preset.
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

  /// The sampling defaults of generation_config.json over those of SamplingParams.
  const SamplingParams& default_sampling() const { return default_sampling_; }

  const MemoryPlan& memory_plan() const { return core_->settings().plan; }

  /// As given, with what was chosen for auto.
  const EngineOptions& options() const { return options_; }

  CoreStats stats() const { return core_->stats(); }

  /// The step loop itself.
  EngineCore& core() { return *core_; }

  const EngineCore& core() const { return *core_; }

 private:
  Engine() = default;

  EngineOptions options_;
  Machine machine_;
  std::unique_ptr<Model> model_;
  std::optional<Tokenizer> tokenizer_;
  SamplingParams default_sampling_;
  MonotonicClock clock_;
  std::unique_ptr<Proposer> proposer_;
  std::unique_ptr<EngineCore> core_;
};

}  // namespace fathom
