// What `run` and `chat` share: flags of sampling, an engine with its progress bar, Ctrl-C.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/engine/model_setup.h"
#include "fathom/api/engine.h"

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
Result<SamplingParams> sampling_params(const SamplingFlags& flags, const SamplingParams& defaults);

/// Tokenizer and files of the MODEL that the options name, for Engine::load. Errors: those of
/// checked_options, Tokenizer::load and open_source.
struct TextModel {
  EngineOptions options;  ///< checked
  EngineSource source;
};

/// `at_once` sequences will run together.
Result<TextModel> open_text_model(const EngineOptions& options, int64_t at_once = 1);

/// Loads a model for sequences of options.max_model_len tokens (0: its context, at most 8192
/// more than the prompt), with a progress bar. Errors: InvalidArgument for a length beyond the
/// model's context; those of Engine::load.
Result<std::unique_ptr<Engine>> load_engine(TextModel model,
                                            const GlobalFlags& globals,
                                            int64_t prompt_tokens = 0);

/// Of the tokens after the first; 0 where there is none.
double tokens_per_second(const Completion& answer);

/// "5 prompt tokens, first token after 12 ms; 64 tokens, 210.5 tokens/s (length)".
std::string summary_of(const Completion& answer);

}  // namespace fathom::cli
