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

enum class ChatRole {
  kSystem,
  kUser,
  kAssistant,
  kTool,
  kDeveloper,       ///< V3.2, V4: a user's turn that carries tools; elsewhere a system message
  kLatestReminder,  ///< V4: what the service itself adds, such as today's date
};

/// The name that a role has in requests: "latest_reminder".
std::string_view chat_role_name(ChatRole role);

/// V4: what the answer to a message shall be in place of a turn of the assistant. The service asks
/// so for the title of a conversation, for a search query and the like.
enum class ChatTask { kNone, kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

/// A call that the assistant makes. `arguments` is JSON text, passed through as it is.
struct ToolCall {
  std::string id{};
  std::string name{};
  std::string arguments{};
};

/// Whether a turn of the assistant is finished or shall be continued by the model.
enum class TurnEnd { kComplete, kContinue };

/// A tool that the model may call.
struct ToolDefinition {
  std::string name{};
  std::string description{};
  Json parameters{};  ///< the JSON schema; null if there is none
  Json definition{};  ///< the whole entry of "tools", as the client wrote it
};

/// What the answer's content shall be, as far as the prompt says so. Formats without a place for it
/// leave it out.
struct ResponseFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema };
  Kind kind = Kind::kText;
  Json schema{};  ///< of kJsonSchema
};

/// The calls of a turn as the model wrote them: the ids from the first marker of their section to
/// its end, and their text.
struct SampledCalls {
  std::vector<int32_t> ids{};
  std::string text{};
};

// Members have initialisers so that designated ones may leave any of them out.
struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content{};
  std::string reasoning_content{};     ///< of an assistant; families drop it from history
  std::vector<ToolCall> tool_calls{};  ///< of an assistant
  std::string tool_call_id{};          ///< of a tool: the call it answers
  TurnEnd end = TurnEnd::kComplete;    ///< kContinue only for the last message, of an assistant
  ChatTask task = ChatTask::kNone;
  std::vector<ToolDefinition> tools{};  ///< of a system or developer message: its own ones
  ResponseFormat response_format{};     ///< of a system or developer message
  /// Printed in place of tool_calls, unless empty; says the same.
  SampledCalls sampled_calls{};
};

struct ChatConversation {
  std::vector<ChatMessage> messages{};
  std::vector<ToolDefinition> tools{};  ///< of the whole conversation
  ResponseFormat response_format{};     ///< of the whole conversation
};

/// Whether the model thinks aloud before it answers. Formats without a switch ignore it.
enum class Thinking { kFormatDefault, kOff, kOn };

/// Whether the prompt ends with the header of the assistant's next turn.
enum class GenerationPrompt { kAdd, kNone };

/// How long the model shall think. V3.2 and V4 only: kNone turns thinking off and the others turn
/// it on where Thinking leaves it open; what V4 makes of them is in dsml/effort.h.
enum class ReasoningEffort { kFormatDefault, kNone, kMinimal, kLow, kMedium, kHigh, kXhigh, kMax };

/// Whether V3.2 and V4 keep the reasoning of turns before the last message of a user.
enum class PastReasoning { kDrop, kKeep };

/// How V3.2 and V4 print the schema of a tool.
enum class ToolSchema {
  kNormal,  ///< name, description ("" if absent), parameters ({} if absent), and nothing else
  kRaw,     ///< the keys of the client in its order
};

struct ChatOptions {
  Thinking thinking = Thinking::kFormatDefault;
  GenerationPrompt generation_prompt = GenerationPrompt::kAdd;
  ReasoningEffort effort = ReasoningEffort::kFormatDefault;
  PastReasoning past_reasoning = PastReasoning::kDrop;
  ToolSchema tool_schema = ToolSchema::kNormal;
};

/// A prompt under construction. Neighbouring texts become one, as merges cross their border.
class PromptText {
 public:
  enum class Kind { kText, kControl, kIds };

  struct Segment {
    Kind kind;
    std::string text;
    std::vector<int32_t> ids{};  ///< of kIds
  };

  PromptText& text(std::string_view text);

  /// One control token, such as "<｜User｜>".
  PromptText& control(std::string_view token);

  /// A text of ours in which control tokens are spelled out; each becomes one.
  PromptText& marked(std::string_view text);

  /// Ids that were sampled, which stand as they are.
  PromptText& sampled(const SampledCalls& calls);

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
    kDsml,        ///< tags with attributes, read by dsml_parser.h: V3.2, V4
  };
  ToolCalls tool_calls = ToolCalls::kNone;
  bool knows_thinking = false;       ///< whether <think> and </think> mean anything
  bool starts_in_reasoning = false;  ///< whether an answer begins with reasoning
  bool continues_turn = false;       ///< kDsml: the prompt ends within a part of the answer
  std::string_view section{};        ///< kDsml: the name of the section of calls, "tool_calls"
};

/// What a format has places for beyond the common roles.
struct ChatFeatures {
  bool reminders = false;      ///< messages of latest_reminder
  bool tasks = false;          ///< ChatMessage::task
  bool message_tools = false;  ///< tools and response formats of single messages
};

/// How a client's messages are to be read for a format (chat_json.h).
struct ChatReading {
  /// What stands between the texts of a content of several parts.
  std::string_view part_separator = "";

  /// What becomes of parts of a tool's result that are no text.
  enum class OtherParts {
    kRefuse,
    kNamed,  ///< "[Unsupported image_url]", as V4 prints them
  };
  OtherParts other_parts_of_results = OtherParts::kRefuse;

  /// Whose messages they are. Clients say developer and mean the system. The service itself has
  /// turns of that role, and its messages may carry `task`, `tools` and `response_format`.
  enum class Author { kClient, kService };
  Author author = Author::kClient;
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

  /// The same for the prompt of this conversation: an answer that goes on with an open turn begins
  /// where that turn stops.
  virtual AnswerGrammar answer_grammar_after(const ChatConversation& conversation,
                                             const ChatOptions& options) const;

  virtual ChatFeatures features() const { return {}; }

  virtual ChatReading reading() const { return {}; }

 protected:
  virtual Result<PromptText> render(const ChatConversation& conversation,
                                    const ChatOptions& options) const = 0;
};

/// All system and developer messages, joined by an empty line.
std::string joined_system_text(const ChatConversation& conversation);

}  // namespace fathom
