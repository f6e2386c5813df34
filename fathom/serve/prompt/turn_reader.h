// What messages and responses share in reading their turns: contents in parts, tools whose fields
// stand beside each other, and errors that speak of the places in the client's body.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/fields.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom::serve {

/// A text of a conversation may be as long as the body allows.
inline constexpr int64_t kMaxTextBytes = INT64_MAX;

/// A conversation in the making, and where in the body each of its messages came from.
struct PlacedConversation {
  ChatConversation conversation;
  std::vector<std::string> places;  ///< "input[3]", one for each message

  ChatMessage& add(ChatRole role, std::string place);
};

/// The error of a status. One that begins with a message's place in the conversation
/// ("messages[2].role ...") has the one in the body instead.
ApiError placed_error(const Status& status, const std::vector<std::string>& places);

/// Reads the contents of one request. Errors go to `root`; what is read after one is empty.
class ContentReader {
 public:
  /// `root` and `reading` outlive this.
  ContentReader(Fields& root, const ChatReading& reading) : root_(root), reading_(reading) {}

  /// Whose content it is: what a tool's result has besides text may be named in the prompt.
  enum class Of { kTurn, kToolResult };

  /// The text of a content: a string, or an array of parts. A part has one of `types` and its text
  /// in `text`; of type refusal, in `refusal`. A null pointer and null are refused as missing.
  std::string text(const Json* content,
                   const std::string& where,
                   std::span<const std::string_view> types,
                   Of of = Of::kTurn);

  /// The same, each part for itself.
  std::vector<std::string> texts(const Json* content,
                                 const std::string& where,
                                 std::span<const std::string_view> types,
                                 Of of = Of::kTurn);

  /// Counts parts of the request; more than the limit fail.
  void count(size_t num_parts, const std::string& where);

  /// Fails for a part of this type; the name in the prompt where the format has one for it.
  std::string other_part(const Fields& part,
                         std::string_view type,
                         std::string_view expected,
                         Of of);

  /// Appends a part behind others.
  void append(std::string& text, std::string_view part, bool is_first) const;
  std::string join(const std::vector<std::string>& parts) const;

  bool ok() const { return root_.ok(); }

  /// Takes over an error.
  void take_error(const Fields& inner);
  void fail(const std::string& where, std::string_view why, std::string code = "invalid_value");

 private:
  std::string part_text(const Json& part,
                        const std::string& where,
                        std::span<const std::string_view> types,
                        Of of);

  Fields& root_;
  const ChatReading& reading_;
  size_t num_parts_ = 0;
};

/// A tool as {"name", "description", `schema_field`, "strict"}. `json` is the object of `tool`. The
/// definition has the form of chat completions, with the client's order of keys.
ToolDefinition read_flat_tool(Fields& tool, const Json& json, std::string_view schema_field);

/// One line of the log for all tools of a request that are left out, by their types; none if there
/// are none.
void log_skipped_tools(std::string_view route, const std::set<std::string>& types);

}  // namespace fathom::serve
