// The prompt structure that V2.5, V3 and R1 share.
//
//   BOS system [tools] then per turn: <｜User｜>u <｜Assistant｜>a EOS
//
// without blanks or line ends around the control tokens. An assistant that calls tools:
//
//   <｜Assistant｜>content? <｜tool▁calls▁begin｜>
//     <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGS\n```<｜tool▁call▁end｜>
//     (more calls, each after a \n) <｜tool▁calls▁end｜> EOS
//
// and the results, after which the assistant goes on without a header:
//
//   <｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>R1<｜tool▁output▁end｜>\n
//     <｜tool▁output▁begin｜>R2<｜tool▁output▁end｜><｜tool▁outputs▁end｜>
//
// The template of the first V3 release leaves out <｜tool▁calls▁end｜> and EOS after a single call;
// they are always written here, as the model itself does.
#pragma once

#include <vector>

#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

/// What differs between the formats.
struct ControlTurnStyle {
  /// Appends the description of the tools, after the system text.
  void (*append_tools)(PromptText& prompt, const std::vector<ToolDefinition>& tools);

  /// Whether a finished turn keeps only the text after its last </think>.
  enum class History { kWhole, kAfterReasoning };
  History history = History::kWhole;

  /// Whether `<think>\n` opens the answer when nothing is said about thinking.
  bool thinks_by_default = false;
};

/// Whether an answer to this prompt begins with reasoning that the prompt has opened.
bool opens_thinking(const ControlTurnStyle& style, const ChatOptions& options);

PromptText render_control_turns(const ChatConversation& conversation,
                                const ChatOptions& options,
                                const ControlTurnStyle& style);

}  // namespace fathom
