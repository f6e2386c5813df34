// A conversation, and the prompt text that a model family expects for it.
//
// Prompts are made by native code, one file a family; templates of checkpoints are never run. A
// prompt is a list of segments: text, and the control tokens that only the formatter writes. Text
// of messages is encoded without added tokens, so a message never forges a control token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

enum class ChatRole { kSystem, kUser, kAssistant, kTool };

/// A call that the assistant makes. `arguments` is JSON text, passed through as it is.
struct ToolCall {
  std::string id{};
  std::string name{};
  std::string arguments{};
};

/// Whether a turn of the assistant is finished or shall be continued by the model.
enum class TurnEnd { kComplete, kContinue };

// Members have initialisers so that designated ones may leave any of them out.
struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content{};
  std::string reasoning_content{};     ///< of an assistant; families drop it from history
  std::vector<ToolCall> tool_calls{};  ///< of an assistant
  std::string tool_call_id{};          ///< of a tool: the call it answers
  TurnEnd end = TurnEnd::kComplete;    ///< kContinue only for the last message, of an assistant
};

/// A tool that the model may call.
struct ToolDefinition {
  std::string name{};
  std::string description{};
  Json parameters{};  ///< the JSON schema; null if there is none
  Json definition{};  ///< the whole entry of "tools", as the client wrote it
};

struct ChatConversation {
  std::vector<ChatMessage> messages{};
  std::vector<ToolDefinition> tools{};
};

/// Whether the model thinks aloud before it answers. Formats without a switch ignore it.
enum class Thinking { kFormatDefault, kOff, kOn };

/// Whether the prompt ends with the header of the assistant's next turn.
enum class GenerationPrompt { kAdd, kNone };

struct ChatOptions {
  Thinking thinking = Thinking::kFormatDefault;
  GenerationPrompt generation_prompt = GenerationPrompt::kAdd;
};

/// A prompt under construction. Neighbouring texts become one, as merges cross their border.
class PromptText {
 public:
  enum class Kind { kText, kControl };

  struct Segment {
    Kind kind;
    std::string text;
  };

  PromptText& text(std::string_view text);

  /// One control token, such as "<｜User｜>".
  PromptText& control(std::string_view token);

  /// A text of ours in which control tokens are spelled out; each becomes one.
  PromptText& marked(std::string_view text);

  const std::vector<Segment>& segments() const { return segments_; }

  /// The whole prompt as one string, as a template would print it.
  std::string str() const;

  /// The ids. A control token that the vocabulary lacks is encoded like text, as the reference
  /// does.
  std::vector<int32_t> encode(const Tokenizer& tokenizer) const;

 private:
  std::vector<Segment> segments_;
};

/// How answers of a format begin and what their tool calls look like (answer_parser.h).
struct AnswerGrammar {
  enum class ToolCalls {
    kNone,        ///< the format has no tool calls
    kFencedJson,  ///< begin type sep NAME \n ```json \n ARGS \n ``` end: V2.5, V3, R1
    kBareJson,    ///< begin NAME sep ARGS end: V3.1
  };
  ToolCalls tool_calls = ToolCalls::kNone;
  bool knows_thinking = false;       ///< whether <think> and </think> mean anything
  bool starts_in_reasoning = false;  ///< whether an answer begins with reasoning
};

/// One prompt format. Stateless, so safe to share between threads.
class ChatFormat {
 public:
  virtual ~ChatFormat() = default;

  /// The name of `--chat-format`: "v3".
  virtual std::string_view name() const = 0;

  /// The prompt. Errors: InvalidArgument for a conversation that the format cannot express, such as
  /// tools in V2, naming the message.
  Result<PromptText> format(const ChatConversation& conversation, const ChatOptions& options) const;

  /// What an answer to such a prompt looks like.
  virtual AnswerGrammar answer_grammar(const ChatOptions& options) const = 0;

 protected:
  virtual Result<PromptText> render(const ChatConversation& conversation,
                                    const ChatOptions& options) const = 0;
};

/// All system messages, joined by an empty line.
std::string joined_system_text(const ChatConversation& conversation);

}  // namespace fathom
