// Answers and arguments of V3.2 and V4. The first byte picks the form of the input:
//
//   even   an answer; its next bits say how it begins and whether tools are known. In pieces of
//   sizes
//          that the text itself gives, by the byte, and whole; then with an end for whatever is
//          open
//   odd    the arguments of a call: reading what was read and printed changes nothing
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"
#include "fathom/text/utf8.h"
#include "fathom/tokenizer/answer/dsml/dsml_parser.h"
#include "fathom/tokenizer/chat/control_tokens.h"
#include "fathom/tokenizer/chat/dsml/python_json.h"

namespace {

using fathom::AnswerDelta;
using fathom::DsmlParser;
using fathom::Json;
using fathom::ToolDefinition;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<std::string> names;
  std::vector<std::string> arguments;
  fathom::AnswerRepairs repairs;
  bool operator==(const Answer&) const = default;

  void add(const AnswerDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const auto& call : delta.tool_calls) {
      const auto index = static_cast<size_t>(call.index);
      if (index == names.size()) {
        require(!call.name.empty(), "a call without a name");
        names.push_back(call.name);
        arguments.emplace_back();
      }
      require(index + 1 == names.size(), "a call that is not the last one grows");
      arguments.back() += call.arguments;
    }
  }
};

std::vector<ToolDefinition> some_tools() {
  ToolDefinition tool{.name = "f"};
  tool.parameters = *fathom::parse_json(
      R"({"properties":{"s":{"type":"string"},"n":{"type":"integer"}}})", {}, "tool");
  return {tool};
}

template <typename SizeOfPiece>
Answer parse(uint8_t form, std::string_view text, const SizeOfPiece& size_of_piece) {
  const fathom::AnswerGrammar grammar{.tool_calls = fathom::AnswerGrammar::ToolCalls::kDsml,
                                      .knows_thinking = true,
                                      .starts_in_reasoning = (form & 2) != 0,
                                      .continues_turn = (form & 4) != 0,
                                      .section = "tool_calls"};
  DsmlParser parser{grammar, (form & 8) != 0 ? some_tools() : std::vector<ToolDefinition>{}};
  Answer answer;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, size_of_piece(text));
    answer.add(parser.push(piece));
    text.remove_prefix(piece.size());
  }
  answer.add(parser.finish());
  answer.repairs = parser.repairs();
  return answer;
}

void parse_answer(uint8_t form, std::string_view text) {
  const Answer whole = parse(form, text, [](std::string_view rest) { return rest.size(); });
  const Answer bytes = parse(form, text, [](std::string_view) { return size_t{1}; });
  const Answer pieces = parse(form, text, [](std::string_view rest) {
    return size_t{1} + static_cast<unsigned char>(rest.front()) % 11;
  });
  require(bytes == whole, "the answer depends on the pieces");
  require(pieces == whole, "the answer depends on the pieces");

  const std::string ended = std::string{text} + "\n</｜DSML｜parameter></｜DSML｜invoke>";
  const Answer complete = parse(form, ended, [](std::string_view rest) { return rest.size(); });
  // The text may end within a character or a tag, which then takes the ends with it.
  if (!fathom::is_valid_utf8(text) || text.find_last_of("<\"'") != text.npos) return;
  for (const std::string& arguments : complete.arguments)
    require(fathom::is_json(arguments), "finished arguments are no JSON");
}

void read_arguments(std::string_view text) {
  const std::string valid = fathom::utf8_lossy(text);
  const auto members = fathom::read_python_object(valid);
  if (!members) return;
  require(fathom::is_json(valid), "more was read than JSON");
  std::string printed = "{";
  for (const fathom::PythonMember& member : *members) {
    if (&member != members->data()) printed += ", ";
    fathom::append_json_string(printed, member.key, fathom::JsonCharset::kUtf8);
    printed += ": ";
    if (member.is_string) {
      fathom::append_json_string(printed, member.text, fathom::JsonCharset::kUtf8);
    } else {
      printed += member.text;
    }
  }
  printed += "}";
  require(fathom::is_json(printed), "what was printed is no JSON");
  const auto again = fathom::read_python_object(printed);
  require(again.has_value() && again->size() == members->size(), "what was printed is not read");
  for (size_t i = 0; i < members->size(); ++i) {
    require((*again)[i].key == (*members)[i].key && (*again)[i].text == (*members)[i].text &&
                (*again)[i].is_string == (*members)[i].is_string,
            "what was printed reads otherwise");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input{reinterpret_cast<const char*>(data) + 1, size - 1};
  if (data[0] % 2 == 0) {
    parse_answer(data[0], input.substr(0, 4'000));
  } else {
    read_arguments(input);
  }
  return 0;
}
