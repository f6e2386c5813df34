// The arguments of one call in DSML as JSON text, piece by piece.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "fathom/text/json.h"
#include "fathom/tokenizer/answer/answer_parser.h"
#include "fathom/tokenizer/answer/dsml/dsml_tags.h"

namespace fathom {

/// Prints {"a": "text", "b": 1} in the order of the parameters. A string is printed as it arrives.
/// Any other value waits until it is whole: it is printed as it stands if it is JSON, else as a
/// string, so finished arguments are always a JSON object.
class DsmlArguments {
 public:
  /// `tool`: the tool that is called; null if it is not known. It must outlive the arguments.
  DsmlArguments(const ToolDefinition* tool, AnswerRepairs& repairs)
      : tool_(tool), repairs_(&repairs) {}

  /// Each appends to `out` what is certain by now.
  void begin_parameter(std::string_view name, DsmlTag::Type type, std::string& out);
  void add_value(std::string_view text, std::string& out);
  void end_parameter(std::string& out);

  /// The end of the call. A single parameter named arguments or input that holds an object, where
  /// the tool has no such parameter, was meant to be that object.
  void end(std::string& out);

  /// The end of the answer within a parameter: what there is of its value, and no end.
  void cut(std::string& out);

  bool has_parameters() const { return !names_.empty(); }

 private:
  enum class Value {
    kString,   // is printed as it comes
    kWhole,    // waits for its end
    kDropped,  // of a name that came before
  };

  bool is_wrapper(std::string_view name) const;
  bool is_declared_string(std::string_view name) const;
  void print_name(std::string& out);
  void print_whole(std::string& out);
  void settle_wrapper(std::string& out);

  const ToolDefinition* tool_;
  AnswerRepairs* repairs_;
  std::set<std::string, std::less<>> names_;
  bool is_empty_ = true;  // nothing is printed yet

  // The parameter at hand.
  std::string name_;
  DsmlTag::Type type_ = DsmlTag::Type::kUnsaid;
  Value value_ = Value::kDropped;
  std::string whole_;
  bool may_be_wrapper_ = false;  // of the first parameter, until the next one or the end
};

}  // namespace fathom
