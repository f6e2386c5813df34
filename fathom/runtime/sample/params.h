// What a request may ask of sampling, with ranges and one check.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

inline constexpr int64_t kMaxStopStrings = 16;
inline constexpr int64_t kMaxStopStringBytes = 1024;
inline constexpr int64_t kMaxStopIds = 64;
inline constexpr int64_t kMaxLogitBias = 1024;
inline constexpr int kMaxTopLogprobs = 20;

/// How tokens are chosen. Order: penalties and bias on logits, temperature, softmax in float32,
/// top-k, renormalise, top-p, renormalise, min-p, one draw by inverse CDF. Temperature 0 is greedy:
/// the largest logit, lowest id on ties.
struct SamplingParams {
  float temperature = 1.0f;         ///< [0, 2]
  float top_p = 1.0f;               ///< (0, 1]; 1: off
  float min_p = 0.0f;               ///< [0, 1]; 0: off
  int64_t top_k = -1;               ///< -1 to vocabulary; -1 and 0: off
  float presence_penalty = 0.0f;    ///< [-2, 2]
  float frequency_penalty = 0.0f;   ///< [-2, 2]
  float repetition_penalty = 1.0f;  ///< (0, 10]; prompt and answer; 1: off
  /// Added to the logits of single tokens: ids in the vocabulary, each once; values [-100, 100].
  std::vector<std::pair<int32_t, float>> logit_bias;
  /// The same seed, prompt and settings give the same tokens. Absent: the engine's seed and the
  /// number of the request.
  std::optional<uint64_t> seed;
  /// Log-probabilities of the chosen token and this many best ones, of the raw logits; -1: none.
  int top_logprobs = -1;  ///< -1 to 20

  int64_t min_tokens = 0;  ///< end tokens and stop strings count from here on; 0 to max_tokens
  /// Tokens to generate, at least 1. Absent: what the context leaves, at most 32,768.
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;        ///< texts that end the answer and are not part of it
  std::vector<int32_t> stop_token_ids;  ///< besides the model's end tokens
  /// The model's end tokens are tokens like others; under a constraint (token_constraint.h) where
  /// it leaves the answer free. What it prescribes goes on while it may, then the answer ends.
  bool ignore_eos = false;

  bool greedy() const { return temperature == 0.0f; }

  bool has_penalties() const {
    return presence_penalty != 0.0f || frequency_penalty != 0.0f || repetition_penalty != 1.0f;
  }
};

/// Checks every field for the ids [0, vocab_size). Errors: InvalidArgument naming the field, the
/// value and the range; NaN and infinity are out of every range.
Status validate(const SamplingParams& params, int64_t vocab_size);

/// The largest logit of each row, and nothing else.
inline SamplingParams greedy_sampling() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

}  // namespace fathom
