// One format through the grammar library.
#pragma once

#if FATHOM_WITH_GRAMMAR

#include <cstdint>
#include <string>
#include <xgrammar/compiler.h>

#include "fathom/base/status.h"

namespace fathom {

/// Compiles a structural tag. Thread-safe; takes as long as it takes. Errors: InvalidArgument
/// `invalid_schema: ...` for what the library refuses, what it says it would not enforce, and
/// `grammar_too_complex: ...` for an automaton of more than `max_states`.
Result<xgrammar::CompiledGrammar> compile_format(xgrammar::GrammarCompiler& compiler,
                                                 const std::string& format,
                                                 int64_t max_states);

/// The states of its automaton.
int64_t num_states(const xgrammar::CompiledGrammar& grammar);

}  // namespace fathom

#endif
