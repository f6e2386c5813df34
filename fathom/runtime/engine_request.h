// What the engine keeps of a request while it lives. For the sources of EngineCore alone.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "fathom/runtime/draft/draft_balance.h"
#include "fathom/runtime/engine.h"

namespace fathom {

// A sequence with what only the engine knows of it.
struct EngineCore::ActiveRequest : Sequence {
  ActiveRequest(SamplingParams sampling,
                int64_t max,
                const CoreSettings& settings,
                const Tokenizer* tokenizer)
      : params(std::move(sampling)),
        guessing(params),
        stop(params, max, settings.end_ids, tokenizer, settings.special_tokens) {
    guessing.top_logprobs = -1;
  }

  SamplingParams params;
  SamplingParams guessing;  // of its drafts
  StopChecker stop;
  TokenCounts counts;
  uint64_t seed = 0;
  uint64_t stream = 0;
  bool ended = false;  // its last event was made
  int64_t started_ns = 0;
  SamplingParams scoring;  // of the rows of its prompt, if that is scored
  std::shared_ptr<TokenConstraint> constraint;
  bool nothing_allowed = false;     // at the first place of its last step, by its mask
  std::vector<bool> only_end_left;  // at each row of it: none but the model's end tokens
  std::vector<int32_t> path;        // of its drafts in that step, those that came out, in order
  int64_t num_drafted = 0;          // computed as drafts
  int64_t num_accepted = 0;         // of them, those that were right
  DraftGain gain;
  bool gains = true;         // by drafts, as it looked before the last step
  int64_t paused_until = 0;  // it drafts again when it has so many generated tokens
  int64_t pause = 0;         // tokens of its last pause
  std::shared_ptr<EventListener> listener = std::make_shared<EventListener>();

  // Places of drafted tokens are sampled side by side, and counts of tokens are not kept by place.
  bool takes_drafts() const { return !params.has_penalties(); }
};

}  // namespace fathom
