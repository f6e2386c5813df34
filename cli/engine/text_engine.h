// A model ready to answer: weights, tokenizer, pages, and the step loop around one request.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/engine/model_setup.h"
#include "fathom/models/config.h"
#include "fathom/runtime/engine.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom::cli {

/// Sampling as flags give it; what is absent comes from generation_config.json, then the default.
struct SamplingFlags {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> repetition_penalty;
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;
  std::vector<std::string> logit_bias;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

void add_sampling_flags(CLI::App& app, SamplingFlags& flags);

/// Flags over the checkpoint's defaults. Errors: InvalidArgument, for logit biases too.
Result<SamplingParams> sampling_params(const SamplingFlags& flags,
                                       const GenerationConfig& defaults);

/// generation_config.json of the directory; empty if there is none.
Result<GenerationConfig> read_generation_config(const std::string& directory);

struct Answer {
  std::vector<int32_t> ids;
  FinishReason finish = FinishReason::kNone;
  int64_t prompt_tokens = 0;
  double first_token_seconds = 0;
  double decode_seconds = 0;  ///< after the first token

  /// "5 prompt tokens, first token after 12 ms; 64 tokens, 210.5 tokens/s".
  std::string summary() const;
};

/// Owns everything an answer needs.
class TextEngine {
 public:
  /// Loads the weights and plans for sequences of `length` tokens (0: the model's context, at most
  /// 8192). Errors: those of loading; OutOfMemory with the flag that helps.
  static Result<std::unique_ptr<TextEngine>> open(const ModelFlags& flags,
                                                  const GlobalFlags& globals,
                                                  Machine machine,
                                                  Tokenizer tokenizer,
                                                  const GenerationConfig& generation,
                                                  int64_t length);

  /// Answers one prompt. `on_text(text, token)` gets text as it becomes certain; false stops the
  /// answer. Errors: InvalidArgument for what the engine refuses; Numerical.
  using OnText = std::function<bool(std::string_view text, int32_t token)>;
  Result<Answer> answer(std::vector<int32_t> prompt,
                        const SamplingParams& params,
                        const OnText& on_text);

  const Tokenizer& tokenizer() const { return tokenizer_; }

  int64_t max_model_len() const { return core_->settings().plan.max_model_len; }

 private:
  TextEngine(Machine machine, Tokenizer tokenizer)
      : machine_(std::move(machine)), tokenizer_(std::move(tokenizer)) {}

  Machine machine_;
  Tokenizer tokenizer_;
  OpenedModel opened_;
  MonotonicClock clock_;
  std::unique_ptr<EngineCore> core_;
};

/// Set by Ctrl-C while a handler is installed; reading clears it.
bool take_interrupt();
void install_interrupt_handler();

}  // namespace fathom::cli
