// Constrained decoding: what an answer may look like, compiled once and followed token by token.
//
//   GrammarSpec --compile (any thread, cached, limited)--> CompiledGrammar --start-->
//   TokenConstraint
//
// The automaton is xgrammar's, behind this header alone. A program built without it has
// grammar_available() false, and compile() says so.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/runtime/sample/token_constraint.h"
#include "fathom/tokenizer/chat/chat.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

/// How much of an answer with tools is prescribed.
enum class ToolGrammar : uint8_t {
  kOff,
  kLight,  ///< text is free until a section of calls opens; then its frame and names, not arguments
  kFull,   ///< and the arguments follow the schemas
};

/// What is asked of an answer: one of the kinds. Beside a kind other than kTools, calls of `tools`
/// may come in place of it.
struct GrammarSpec {
  enum class Kind : uint8_t {
    kJson,           ///< any JSON object
    kJsonSchema,     ///< `text` is the schema
    kRegex,          ///< `text` is the expression
    kChoice,         ///< one of `choices`, whole
    kEbnf,           ///< `text` is a grammar in GBNF, its root rule "root"
    kStructuralTag,  ///< `text` is a structural tag as JSON
    kTools,          ///< calls of `tools` in the form of `answer`
  };
  Kind kind = Kind::kJson;
  std::string text;
  std::vector<std::string> choices;

  std::vector<ToolDefinition> tools;       ///< empty: nothing may be called
  AnswerGrammar answer;                    ///< how calls are written
  ToolGrammar level = ToolGrammar::kFull;  ///< of tools
  bool must_call = false;                  ///< kTools: required or a name, so a call comes first
  bool parallel_calls = true;              ///< more than one call

  /// The answer begins with reasoning, which is free up to this token (</think>), but that the
  /// answer does not end in it where something must follow.
  std::optional<int32_t> free_until;

  /// Whether an answer may hold calls.
  bool has_calls() const { return kind == Kind::kTools || !tools.empty(); }
};

struct GrammarLimits {
  int64_t max_schema_bytes = 64 << 10;
  int64_t max_schema_depth = 32;  ///< of schemas within schemas
  /// Of a schema or a structural tag as JSON, where one schema within another takes two levels.
  int64_t max_json_depth = 96;
  int64_t max_pattern_bytes = 4 << 10;
  double compile_seconds = 1.0;
  int64_t max_states = 100'000;
  int64_t cache_bytes = 64 << 20;
};

/// A grammar that is ready. Immutable and thread-safe.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;

  /// The beginning of an answer.
  virtual std::unique_ptr<TokenConstraint> start() const = 0;
};

struct GrammarStats {
  int64_t compiled = 0;
  int64_t hits = 0;  ///< found in the cache
  int64_t refused = 0;
  int64_t cached_bytes = 0;
};

/// Whether this program has constrained decoding.
bool grammar_available();

class GrammarCompiler {
 public:
  /// For a tokenizer (which outlives it), logits of `vocab_width`, and the model's end tokens.
  /// Errors: Unsupported in a program built without it.
  static Result<std::unique_ptr<GrammarCompiler>> create(const Tokenizer& tokenizer,
                                                         int64_t vocab_width,
                                                         std::vector<int32_t> end_ids,
                                                         const GrammarLimits& limits = {});
  virtual ~GrammarCompiler() = default;

  /// Thread-safe; equal specs are compiled once. Errors: InvalidArgument `invalid_schema: ...` for
  /// what is no schema, expression or grammar, and `grammar_too_complex: ...` beyond the limits.
  virtual Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec& spec) = 0;

  virtual GrammarStats stats() const = 0;
};

}  // namespace fathom
