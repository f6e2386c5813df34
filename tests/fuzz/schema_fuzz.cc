// Grammars of clients. The first byte picks the kind and how tools are called, the rest is its
// text; then a walk by tokens that the grammar allows, with steps taken back.
//
//   bits 0-2   schema, expression, EBNF, structural tag, choices (one a line), tools (the text is
//              the schema of their parameters)
//   bits 3-4   the form of calls
//   bit 5      light or full; bit 6: a call must come; bit 7: calls may come in place of the others
//
// Nothing may crash or hang, what is refused is so by name, an allowed token is taken, no added
// token but an end or a marker is allowed, and a step back gives the mask that was.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/grammar/grammar.h"
#include "fathom/tokenizer/chat/control_tokens.h"
#include "tests/support/grammar_walk.h"

namespace {

using fathom::AnswerGrammar;
using fathom::GrammarSpec;

constexpr int64_t kWidth = 4160;
constexpr int32_t kEnd = 1;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

const fathom::Tokenizer& tokenizer() {
  static const auto loaded = [] {
    auto marked =
        fathom::marked_tokenizer(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3",
                                 {fathom::control::kToolCallsBegin, fathom::control::kToolCallsEnd,
                                  fathom::control::kToolCallBegin, fathom::control::kToolCallEnd,
                                  fathom::control::kToolSep, fathom::control::kDsml});
    require(marked.ok(), "the vocabulary cannot be read");
    return *std::move(marked);
  }();
  return loaded;
}

fathom::GrammarCompiler& compiler() {
  static const auto made = [] {
    fathom::GrammarLimits limits;
    limits.compile_seconds = 3;
    limits.max_schema_bytes = 4096;
    limits.max_pattern_bytes = 512;
    limits.max_states = 20'000;
    limits.cache_bytes = 1 << 20;
    auto compiler = fathom::GrammarCompiler::create(tokenizer(), kWidth, {kEnd}, limits);
    require(compiler.ok(), "the compiler cannot be made");
    return *std::move(compiler);
  }();
  return *made;
}

GrammarSpec spec_of(uint8_t form, std::string_view text) {
  GrammarSpec spec;
  spec.answer = {.tool_calls = static_cast<AnswerGrammar::ToolCalls>((form >> 3) % 4),
                 .section = "tool_calls"};
  spec.level = (form & 32) != 0 ? fathom::ToolGrammar::kLight : fathom::ToolGrammar::kFull;
  if ((form & 128) != 0) spec.tools = {fathom::ToolDefinition{.name = "g"}};
  switch (form % 8) {
    case 0:
      spec.kind = GrammarSpec::Kind::kJsonSchema;
      break;
    case 1:
      spec.kind = GrammarSpec::Kind::kRegex;
      break;
    case 2:
      spec.kind = GrammarSpec::Kind::kEbnf;
      break;
    case 3:
      spec.kind = GrammarSpec::Kind::kStructuralTag;
      break;
    case 4:
      spec.kind = GrammarSpec::Kind::kChoice;
      while (!text.empty()) {
        spec.choices.emplace_back(text.substr(0, text.find('\n')));
        text.remove_prefix(std::min(spec.choices.back().size() + 1, text.size()));
      }
      break;
    default: {
      spec.kind = GrammarSpec::Kind::kTools;
      fathom::ToolDefinition tool{.name = "f"};
      auto parameters = fathom::parse_json(text, {}, "parameters");
      if (parameters.ok()) tool.parameters = *std::move(parameters);
      spec.tools = {tool, fathom::ToolDefinition{.name = "g"}};
      spec.must_call = (form & 64) != 0;
      break;
    }
  }
  spec.text = text;
  return spec;
}

void walk(fathom::TokenConstraint& constraint, uint64_t seed) {
  fathom::GrammarWalk walk{tokenizer(), kWidth, kEnd, seed};
  std::vector<uint32_t> before((kWidth + 31) / 32, 0);
  std::vector<uint32_t> after = before;
  for (int step = 0; step < 48; ++step) {
    const auto place = constraint.next(before);
    const int32_t id = walk.pick(constraint, step < 24);
    require(walk.problem.empty(), "an added token is allowed");
    require(id >= 0, "nothing is allowed");
    require(constraint.accept(id), "an allowed token is not taken");
    if (step % 5 == 0) {
      constraint.rollback(1);
      require(constraint.next(after) == place && before == after, "a step back leads elsewhere");
      require(constraint.accept(id), "a token is not taken again");
    }
    if (id == kEnd) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || !fathom::grammar_available()) return 0;
  const std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
  const auto grammar = compiler().compile(spec_of(data[0], text));
  if (grammar.ok()) {
    walk(*(*grammar)->start(), size);
    return 0;
  }
  const std::string why = grammar.status().message();
  require(why.starts_with("invalid_schema: ") || why.starts_with("grammar_too_complex: "),
          "a refusal without its name");
  return 0;
}
