// The program with a terminal for its standard output, or for its standard error.
#pragma once

#include <fcntl.h>
#include <functional>
#include <pty.h>
#include <termios.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {

/// What fathom ARGS, whose process runs `before` first, writes to a terminal, byte by byte, in
/// `out` (for STDERR_FILENO in `err`); at most a few kB.
inline ProgramResult run_on_terminal(
    const std::vector<std::string>& args,
    const std::string& input = {},
    int descriptor = STDOUT_FILENO,
    const std::function<void()>& before = [] {}) {
  int terminal = -1;
  int program = -1;
  termios plain{};
  cfmakeraw(&plain);  // a newline stays one
  if (openpty(&terminal, &program, nullptr, &plain, nullptr) != 0) std::abort();
  ProgramResult result = run_fathom(args, input, [&] {
    if (dup2(program, descriptor) < 0) _exit(127);
    before();
  });
  if (fcntl(terminal, F_SETFL, O_NONBLOCK) != 0) std::abort();
  std::string& shown = descriptor == STDERR_FILENO ? result.err : result.out;
  shown.clear();
  char buffer[4096];
  for (ssize_t got = 0; (got = read(terminal, buffer, sizeof buffer)) > 0;)
    shown.append(buffer, static_cast<size_t>(got));
  close(program);
  close(terminal);
  return result;
}

}  // namespace fathom::e2e
