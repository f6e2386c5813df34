// Tools of type custom take one text. The model is told of a function with one parameter, `input`,
// and its calls are given back as that text.
#pragma once

#include <string>
#include <string_view>

#include "fathom/text/json.h"

namespace fathom::serve {

/// {"input": TEXT}: the arguments of a call with this input, as prompts have them.
std::string custom_arguments(std::string_view input);

/// The schema of such a function. `format` is the tool's, or null: a grammar in it becomes the
/// description of the parameter, as nothing else tells the model of it.
Json custom_parameters(const Json* format);

/// Reads the input out of the text of a call's arguments while it arrives.
class CustomInput {
 public:
  /// What is certain of the input with the next piece of arguments. However they are cut, the
  /// pieces add up to the same. Arguments of another form are passed through whole.
  std::string push(std::string_view arguments);

 private:
  enum class Phase { kBefore, kText, kAfter, kOtherForm };

  void push_char(char c, std::string& out);
  void push_before(char c, std::string& out);
  void push_text(char c, std::string& out);
  void push_escape(char c, std::string& out);
  void end_surrogate(std::string& out);

  Phase phase_ = Phase::kBefore;
  std::string before_;  // all arguments up to the text, in case they are of another form
  size_t matched_ = 0;  // of {"input":"
  std::string escape_;  // an escape that is not whole, behind the backslash
  bool in_escape_ = false;
  char32_t high_surrogate_ = 0;  // that waits for its low one
};

}  // namespace fathom::serve
