#if FATHOM_WITH_GRAMMAR

#include "fathom/grammar/library_compile.h"

#include <exception>
#include <string_view>

#include "compiled_grammar_impl.h"
#include "fathom/base/str_cat.h"
#include "fathom/grammar/library_log.h"
#include "grammar_impl.h"

namespace fathom {
namespace {

// The library's words without "Check failed: (...) is false:" and, at most, so many bytes.
std::string words_of(std::string_view message) {
  constexpr size_t kMaxBytes = 400;
  constexpr std::string_view kIsFalse = ") is false: ";
  if (message.starts_with("Check failed") || message.starts_with("Internal check failed")) {
    const size_t at = message.find(kIsFalse);
    if (at != message.npos) message.remove_prefix(at + kIsFalse.size());
  }
  while (message.ends_with('\n'))
    message.remove_suffix(1);
  return std::string{message.substr(0, kMaxBytes)};
}

}  // namespace

Result<xgrammar::CompiledGrammar> compile_format(xgrammar::GrammarCompiler& compiler,
                                                 const std::string& format,
                                                 int64_t max_states) {
  const LibraryWarnings warnings;
  try {
    xgrammar::CompiledGrammar grammar = compiler.CompileStructuralTag(format);
    if (!warnings.first().empty()) {
      return invalid_argument(
          str_cat("invalid_schema: not supported: ", words_of(warnings.first())));
    }
    if (const int64_t states = num_states(grammar); states > max_states) {
      return invalid_argument(str_cat("grammar_too_complex: the grammar has ", states,
                                      " states, at most ", max_states));
    }
    return grammar;
  } catch (const std::bad_alloc&) {
    return invalid_argument("grammar_too_complex: the grammar does not fit into memory");
  } catch (const std::exception& error) {
    return invalid_argument(str_cat("invalid_schema: ", words_of(error.what())));
  }
}

int64_t num_states(const xgrammar::CompiledGrammar& grammar) {
  return grammar.GetGrammar()->complete_fsm.NumStates();
}

}  // namespace fathom

#endif
