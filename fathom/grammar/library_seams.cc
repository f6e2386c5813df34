// What the grammar library leaves to the program it is linked into: where messages go, what a fatal
// one does, and the reader of the Lark language, which is not built (cmake/serve.cmake).
#include "fathom/grammar/library_log.h"

#if FATHOM_WITH_GRAMMAR

#include <exception>
#include <stdexcept>
#include <xgrammar/grammar.h>

#include "fathom/base/log.h"

namespace fathom {
namespace {

constexpr int kLibraryWarning = 2;  // XGRAMMAR_LOG_LEVEL_WARNING

// Of the compile that runs on this thread. A thread-local, as the library's messages carry nothing
// that says which call they belong to.
thread_local LibraryWarnings* warnings_of_thread = nullptr;

}  // namespace

LibraryWarnings::LibraryWarnings() {
  warnings_of_thread = this;
}

LibraryWarnings::~LibraryWarnings() {
  warnings_of_thread = nullptr;
}

void LibraryWarnings::take(int level, const std::string& message) {
  if (level != kLibraryWarning) return;
  if (warnings_of_thread == nullptr) {
    log_debug("grammar: ", message);
  } else if (warnings_of_thread->first_.empty()) {
    warnings_of_thread->first_ = message;
  }
}

}  // namespace fathom

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message);
Grammar LarkToGrammar(const std::string&,
                      const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  std::rethrow_exception(std::make_exception_ptr(std::runtime_error(message)));
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  fathom::LibraryWarnings::take(level, message);
}

Grammar LarkToGrammar(const std::string&,
                      const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&) {
  LogFatalImpl({}, 0, "grammars in the Lark language are not supported");
}

}  // namespace xgrammar

#endif
