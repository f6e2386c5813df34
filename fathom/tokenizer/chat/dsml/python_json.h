// JSON texts as Python reads and prints them: json.loads, then json.dumps(ensure_ascii=False).
//
// The reference encoders take the arguments of a call through both, so integers keep all their
// digits, doubles are printed as repr does, white space becomes ", " and ": ", escapes are undone
// where JSON allows it, and of equal keys the place of the first stays with the value of the last.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

/// A member of an object.
struct PythonMember {
  std::string key;
  bool is_string;
  std::string text;  ///< a string: its characters; another value: as json.dumps prints it
};

/// The members of an object in their order; nothing if the text is no object, or no JSON by RFC
/// 8259: NaN, infinities, numbers beyond double, lone surrogates, more than 200 levels.
std::optional<std::vector<PythonMember>> read_python_object(std::string_view text);

}  // namespace fathom
