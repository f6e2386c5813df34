// A program without constrained decoding.
#include "fathom/grammar/grammar.h"

#if !FATHOM_WITH_GRAMMAR

namespace fathom {

bool grammar_available() {
  return false;
}

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::create(const Tokenizer&,
                                                                 int64_t,
                                                                 std::vector<int32_t>,
                                                                 const GrammarLimits&) {
  return unsupported("this program was built without constrained decoding (FATHOM_GRAMMAR)");
}

}  // namespace fathom

#endif
