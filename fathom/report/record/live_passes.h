// The passes that a real run is made of, on either kind of device (live_trace.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/report/record/live_trace.h"

namespace fathom {

inline constexpr int64_t kMostRecordedCalls = 1 << 15;  ///< of one pass

struct PhaseName {
  const char* name;
  const char* title;
};

inline constexpr PhaseName kPrefillPhase{"prefill", "Prefill"};
inline constexpr PhaseName kChunkedPhase{"prefill_chunked", "Prefill after a cached prefix"};
inline constexpr PhaseName kDecodePhase{"decode", "Decode"};
inline constexpr PhaseName kDraftPhase{"draft", "Draft head, one token ahead"};
inline constexpr PhaseName kDraftChainPhase{"draft_chain", "Draft head on its own output"};
inline constexpr PhaseName kVerifyPhase{"verify", "Verification of drafts"};

/// One pass of a prompt.
struct PromptPass {
  PhaseName phase;
  std::span<const int32_t> tokens;
  bool last;
};

/// The prompt in passes of at most options.chunk tokens; it stays in the options.
std::vector<PromptPass> prompt_passes(const LiveOptions& options);

/// True if the draft head follows the prompt.
bool drafts_after_prompt(const Model& model, const LiveOptions& options);

/// What the draft head reads: for each token of the prompt the one behind it.
std::vector<int32_t> tokens_after_prompt(const LiveOptions& options, int32_t next);

/// The first of the largest logits of a row, as argmax has it. Errors: Numerical for a logit that
/// is not finite.
Result<int32_t> best_token(const View& logits, int64_t row);

}  // namespace fathom
