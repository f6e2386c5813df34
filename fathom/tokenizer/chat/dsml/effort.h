// Thinking and its effort in V3.2 and V4: one table, read by encoders and by their tests.
#pragma once

#include <string_view>

#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

/// The releases of V4 differ in nothing else.
enum class V4Release {
  kPreview,  ///< the checkpoints with an MTP layer
  k0731,     ///< those of July 31, with the DSpark drafter
};

/// What the prompt of V4 says of the effort.
enum class EffortText {
  kNothing,
  kAbsoluteMaximum,  ///< "Reasoning Effort: Absolute maximum ..."
  kBeyondMaximum,    ///< "Reasoning Effort: Beyond maximum ..."
};

/// The row of a release:
///
///   effort     preview            0731
///   default    nothing            absolute maximum (as high, the default of the official recipe)
///   none       nothing            absolute maximum (it turns thinking off; with Thinking::kOn:
///   default) minimal    nothing            nothing low        nothing            nothing medium
///   nothing            absolute maximum high       nothing            absolute maximum xhigh
///   nothing            absolute maximum max        absolute maximum   beyond maximum
EffortText effort_text(V4Release release, ReasoningEffort effort);

/// The words, with the empty line behind them.
std::string_view effort_prefix(EffortText text);

/// Whether the model thinks. What Thinking says counts first; then an effort, which is thinking
/// unless it is none; then the default.
bool thinks(const ChatOptions& options, Thinking by_default);

}  // namespace fathom
