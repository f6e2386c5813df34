#include "fathom/tokenizer/chat/dsml/effort.h"

#include <array>

namespace fathom {
namespace {

struct Row {
  ReasoningEffort effort;
  EffortText preview;
  EffortText release_0731;
};

constexpr auto kNothing = EffortText::kNothing;
constexpr auto kAbsolute = EffortText::kAbsoluteMaximum;
constexpr auto kBeyond = EffortText::kBeyondMaximum;

// By the value of the effort.
constexpr std::array<Row, 8> kRows = {{
    {ReasoningEffort::kFormatDefault, kNothing, kAbsolute},
    {ReasoningEffort::kNone, kNothing, kAbsolute},
    {ReasoningEffort::kMinimal, kNothing, kNothing},
    {ReasoningEffort::kLow, kNothing, kNothing},
    {ReasoningEffort::kMedium, kNothing, kAbsolute},
    {ReasoningEffort::kHigh, kNothing, kAbsolute},
    {ReasoningEffort::kXhigh, kNothing, kAbsolute},
    {ReasoningEffort::kMax, kAbsolute, kBeyond},
}};

constexpr bool rows_are_in_order() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].effort) != i) return false;
  }
  return true;
}

static_assert(rows_are_in_order(), "the table is read by the value of the effort");

}  // namespace

EffortText effort_text(V4Release release, ReasoningEffort effort) {
  const Row& row = kRows[static_cast<size_t>(effort)];
  return release == V4Release::kPreview ? row.preview : row.release_0731;
}

std::string_view effort_prefix(EffortText text) {
  switch (text) {
    case EffortText::kNothing:
      return "";
    case EffortText::kAbsoluteMaximum:
      return "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
             "You MUST be very thorough in your thinking and comprehensively decompose the problem "
             "to resolve the root cause, rigorously stress-testing your logic against all "
             "potential paths, edge cases, and adversarial scenarios.\n"
             "Explicitly write out your entire deliberation process, documenting every "
             "intermediate step, considered alternative, and rejected hypothesis to ensure "
             "absolutely no assumption is left unchecked.\n\n";
    case EffortText::kBeyondMaximum:
      return "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
             "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to "
             "chance: exhaustively decompose the problem into its most fundamental components, "
             "trace every causal chain to its root, and resolve the underlying cause rather than "
             "any surface symptom.\n"
             "Do not stop reasoning until you have independently verified the solution from "
             "multiple angles and are certain that no assumption remains unchecked and no error "
             "remains undiscovered.\n\n";
  }
  return "";
}

bool thinks(const ChatOptions& options, Thinking by_default) {
  if (options.thinking != Thinking::kFormatDefault) return options.thinking == Thinking::kOn;
  if (options.effort != ReasoningEffort::kFormatDefault) {
    return options.effort != ReasoningEffort::kNone;
  }
  return by_default == Thinking::kOn;
}

}  // namespace fathom
