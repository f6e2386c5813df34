// The program with a terminal for its standard output.
#pragma once

#include <fcntl.h>
#include <pty.h>
#include <termios.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {

/// What fathom ARGS writes to a terminal, byte by byte, in `out`; at most a few kB.
inline ProgramResult run_on_terminal(const std::vector<std::string>& args,
                                     const std::string& input = {}) {
  int terminal = -1;
  int program = -1;
  termios plain{};
  cfmakeraw(&plain);  // a newline stays one
  if (openpty(&terminal, &program, nullptr, &plain, nullptr) != 0) std::abort();
  ProgramResult result = run_fathom(args, input, [&] {
    if (dup2(program, STDOUT_FILENO) < 0) _exit(127);
  });
  if (fcntl(terminal, F_SETFL, O_NONBLOCK) != 0) std::abort();
  result.out.clear();
  char buffer[4096];
  for (ssize_t got = 0; (got = read(terminal, buffer, sizeof buffer)) > 0;)
    result.out.append(buffer, static_cast<size_t>(got));
  close(program);
  close(terminal);
  return result;
}

}  // namespace fathom::e2e
