#include "cli/io/chat_commands.h"

#include <cstdio>
#include <optional>
#include <unistd.h>

#include "cli/engine/text_engine.h"
#include "cli/io/interrupt.h"
#include "cli/io/line_reader.h"

namespace fathom::cli {
namespace {

constexpr const char* kHelp =
    "  /clear   forget the conversation\n"
    "  /system TEXT   set the system message and start again\n"
    "  /stats   figures of the last answer\n"
    "  /help    this list\n"
    "  /exit    leave (or Ctrl-D)\n"
    "  Ctrl-C stops the answer.\n";

enum class Next { kGoOn, kLeave };

Next run_command(const std::string& line, const std::string& system, const ChatActions& actions) {
  constexpr std::string_view kSystem = "/system ";
  if (line == "/exit" || line == "/quit") return Next::kLeave;
  if (line == "/clear") {
    actions.start_again(system);
  } else if (line.starts_with(kSystem)) {
    actions.start_again(line.substr(kSystem.size()));
  } else if (line == "/stats") {
    const std::string stats = actions.stats();
    std::printf("%s\n", stats.empty() ? "no answer yet" : stats.c_str());
  } else {
    std::printf("%s", kHelp);
  }
  return Next::kGoOn;
}

}  // namespace

Status run_chat_lines(const std::string& system, const ChatActions& actions) {
  const bool typed = isatty(STDIN_FILENO) == 1;
  LineReader reader(typed ? "> " : "");
  actions.start_again(system);
  for (;;) {
    FATHOM_ASSIGN(const std::optional<std::string> line, reader.next());
    (void)take_interrupt();  // what was pressed while a line was typed
    if (!line) return {};
    if (line->empty()) continue;
    if (line->front() != '/') {
      Status said = actions.say(*line);
      // A person goes on; a script must learn of it.
      const bool goes_on = typed && said.code() == StatusCode::kInvalidArgument;
      if (!said.ok() && !goes_on) return said;
      if (!said.ok()) print_chat_problem(said.message());
    } else if (run_command(*line, system, actions) == Next::kLeave) {
      return {};
    }
  }
}

void print_chat_problem(std::string_view message) {
  std::fprintf(stderr, "fathom: %.*s\nfathom: /clear starts again\n",
               static_cast<int>(message.size()), message.data());
}

}  // namespace fathom::cli
