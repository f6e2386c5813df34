// A request, and the sequence of tokens that the scheduler moves through its states:
//
//   waiting ---admit---> running ---last token, stop, error, abort---> finished
//      ^                    |
//      +----- preempt ------+      pages are given back; the tokens so far are computed again
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/runtime/kv/prefix_cache.h"
#include "fathom/runtime/kv/sequence_cache.h"
#include "fathom/runtime/sample/params.h"
#include "fathom/runtime/sample/token_constraint.h"

namespace fathom {

/// Counts up and is never reused, so a late word about a finished request finds nobody.
using RequestId = uint64_t;

enum class FinishReason : uint8_t {
  kNone,            ///< not finished
  kStop,            ///< end token or stop string
  kLength,          ///< max_tokens, or the end of the context
  kAborted,         ///< cancelled by the client or at shutdown
  kQueueTimeout,    ///< waited too long
  kRequestTimeout,  ///< took too long in all
  kNumericalError,  ///< its logits held NaN or infinity
  /// Its constraint refused a token that its own mask allowed, or allowed none: a fault of ours.
  kConstraintFault,
  kEngineFault,  ///< the engine cannot go on
};

/// "stop", "length", "aborted", "queue_timeout", "request_timeout", "numerical_error",
/// "constraint_fault", "engine_fault"; "none" while running.
std::string_view finish_reason_name(FinishReason reason);

/// The opposite of finish_reason_name for reasons that are errors: Ok for stop and length.
Status finish_status(FinishReason reason);

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
};

/// Log-probabilities at one place of a prompt: of the token that stands there, after those before
/// it, and of the best ones there.
struct PromptLogprobs {
  TokenLogprob token;
  int32_t rank = 0;  ///< of the token, 1 for the most probable
  std::vector<TokenLogprob> top;
};

/// One piece of news about a request. Views live during the call only.
struct TokenEvent {
  RequestId id = 0;
  int32_t token = -1;     ///< -1: none (an end without a token)
  int64_t index = -1;     ///< of the token among the generated ones, from 0
  std::string_view text;  ///< what became certain with it; stop strings are held back
  float logprob = 0.0f;   ///< if asked for
  std::span<const TokenLogprob> top_logprobs{};
  FinishReason finish = FinishReason::kNone;  ///< set in the last event of a request
  std::string_view stop_text{};               ///< the stop string that ended it
  int64_t cached_tokens = 0;                  ///< of the prompt, found in the prefix cache
  int64_t drafted_tokens = 0;                 ///< of the request so far, computed as drafts
  int64_t accepted_tokens = 0;                ///< of them, those that were right
  int64_t started_ns = 0;  ///< clock of the engine: when the first token of the prompt was computed
  /// With the first token, if asked for: of each token of the prompt but the first.
  const std::vector<PromptLogprobs>* prompt_logprobs = nullptr;
};

using TokenCallback = std::function<void(const TokenEvent&)>;

/// What a caller hands in.
struct Request {
  std::vector<int32_t> prompt;  ///< at least one id in [0, vocabulary)
  SamplingParams sampling;
  std::string cache_salt;          ///< prefixes are shared between equal salts only
  int64_t queue_timeout_ns = 0;    ///< 0: may wait for ever
  int64_t request_timeout_ns = 0;  ///< 0: may take for ever
  /// What the answer may hold; null: anything.
  std::shared_ptr<TokenConstraint> constraint;
  /// Log-probabilities of the prompt and this many best ones at each place; -1: none. Its prompt is
  /// computed whole, without the prefix cache, few tokens a step.
  int prompt_logprobs = -1;  ///< -1 to 20
  TokenCallback on_token;    ///< called on the engine thread; may cancel and submit
};

enum class SequenceState : uint8_t { kNew, kWaiting, kRunning, kFinished };

/// What the scheduler knows of a request. Fields below the line belong to the scheduler; others
/// read them.
struct Sequence {
  RequestId id = 0;
  std::vector<int32_t> tokens;  ///< prompt, then what was generated
  int64_t prompt_length = 0;
  int64_t max_tokens = 1;
  std::string cache_salt;
  int64_t queue_deadline_ns = 0;  ///< 0: none
  int64_t deadline_ns = 0;        ///< 0: none
  /// A guess at the tokens to come: the next step of a decoding sequence computes as many of them
  /// as there is room for, and commits those that turn out right. Dropped after each step.
  std::vector<int32_t> drafts;
  /// Of a tree: the draft that each one follows, an earlier one; -1: the last known token. Empty: a
  /// chain.
  std::vector<int32_t> draft_parents;
  /// The tokens from here on lack rows of the draft layer: their blocks are shared with nobody.
  int64_t num_shareable = INT64_MAX;
  bool scores_prompt = false;  ///< the logits of its whole prompt are wanted, each once
  // ----
  SequenceState state = SequenceState::kNew;
  uint64_t order = 0;        ///< of arrival
  SequenceCache cache;       ///< empty unless running
  int64_t num_computed = 0;  ///< tokens whose rows lie in the cache
  /// Leading tokens whose keys were made by prefill, now or when their page was cached.
  int64_t num_prefilled = 0;
  bool prefilling = true;          ///< until the last known token has been computed
  int64_t num_scored = 0;          ///< leading tokens whose logits were handed out
  int64_t num_offered_blocks = 0;  ///< leading blocks that were offered to the prefix cache
  PageId snapshot = kNoPage;       ///< of rings and states, until its block may be shared
  int64_t snapshot_block = 0;      ///< which block it lies behind
  PrefixKey root{};                ///< where its chain of page keys begins
  std::vector<PrefixKey> keys;     ///< of its leading blocks, as far as they were needed
  int64_t cached_tokens = 0;       ///< prefix hit at its first admission
  int32_t num_preemptions = 0;
  bool in_flight = false;  ///< part of a step that was planned and not finished
  FinishReason abort_reason = FinishReason::kNone;  ///< set while it waits for its step to end
  FinishReason finish = FinishReason::kNone;

  /// The draft before a draft; -1: the last known token.
  int32_t draft_before(int32_t draft) const {
    return draft_parents.empty() ? draft - 1 : draft_parents[static_cast<size_t>(draft)];
  }

  void drop_drafts() {
    drafts.clear();
    draft_parents.clear();
  }

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }

  int64_t num_generated() const { return num_tokens() - prompt_length; }

  /// Tokens from 0 on whose logits are wanted: all of the prompt but the last, which gives a token.
  int64_t num_to_score() const { return scores_prompt ? prompt_length - 1 : 0; }
};

}  // namespace fathom
