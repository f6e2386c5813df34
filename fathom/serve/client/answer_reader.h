// The streams of three APIs as a client reads them: text, reasoning, calls of tools, and what the
// server counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/serve/sse.h"
#include "fathom/text/json.h"

namespace fathom::serve {

/// Routes that generate text, of OpenAI's API and of Anthropic's.
enum class TextRoute : uint8_t { kCompletions, kChat, kMessages };

/// "/v1/completions", ...
std::string_view text_route_path(TextRoute route);

/// The route of a path. Errors: InvalidArgument, with the paths there are.
Result<TextRoute> parse_text_route(std::string_view path);

/// Tokens as the server counted them; absent where it does not say.
struct CountedTokens {
  std::optional<int64_t> prompt;
  std::optional<int64_t> completion;
  std::optional<int64_t> cached;     ///< of the prompt
  std::optional<int64_t> reasoning;  ///< of the completion
  std::optional<int64_t> drafted;
  std::optional<int64_t> accepted;  ///< drafts that came out
};

struct ReceivedToolCall {
  std::string id;
  std::string name;
  std::string arguments;  ///< JSON
};

struct ReceivedAnswer {
  std::string content;
  std::string reasoning;
  std::vector<ReceivedToolCall> tool_calls;
  std::string finish_reason;  ///< empty until the server named one
  CountedTokens counted;
};

/// What one event of a stream was.
struct AnswerPiece {
  enum class Kind : uint8_t {
    kNothing,  ///< usage, an end, a ping: says nothing of when tokens came
    kOpening,  ///< names the role alone
    kTokens,
    kClosing,  ///< names the reason of the end alone
  };

  Kind kind = Kind::kNothing;
  std::string content{};
  std::string reasoning{};
};

/// Reads the answer of one request with one choice.
class AnswerReader {
 public:
  explicit AnswerReader(TextRoute route) : route_(route) {}

  /// One event. Errors: Corrupt for data that is no JSON of the route; Unavailable for an error
  /// that the server sent in place of the rest, with its message; error_code() names it then.
  Result<AnswerPiece> read(const SseEvent& event);

  /// The server said that nothing more comes.
  bool ended() const { return ended_; }

  const std::string& error_code() const { return error_code_; }

  const ReceivedAnswer& answer() const { return answer_; }

 private:
  AnswerPiece read_choice(const Json& choice);
  AnswerPiece read_block(const Json& event);
  void read_tool_calls(const Json& calls);
  void read_counts(const Json& event);
  Status sent_error(const Json& error);

  TextRoute route_;
  ReceivedAnswer answer_;
  std::string error_code_;
  bool ended_ = false;
};

/// The code and the message of an error's body, in either API's shape; the beginning of the text
/// where it is neither.
struct SentError {
  std::string code;  ///< "queue_full", else the type
  std::string message;
};

SentError read_error_body(std::string_view body);

}  // namespace fathom::serve
