#include "cli/io/interrupt.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <string>
#include <unistd.h>

#include "cli/command.h"
#include "cli/io/terminal.h"
#include "fathom/base/str_cat.h"

namespace fathom::cli {
namespace {

std::atomic<bool> g_interrupted{false};

// What a handler may print lies ready: it can neither take memory nor a lock.
std::array<char, 512> g_farewell{};
std::atomic<size_t> g_farewell_size{0};

// The first asks for an end at the next good place; a second before that, while a long prompt is
// computed, ends the program.
void note_interrupt(int) {
  if (!g_interrupted.exchange(true)) return;
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
}

void say_and_end(int) {
  cover_drawn_line();
  const size_t size = g_farewell_size.load();
  if (size > 0 && ::write(STDERR_FILENO, g_farewell.data(), size) < 0) _exit(kExitInterrupted);
  _exit(kExitInterrupted);
}

void set_handler(void (*handler)(int)) {
  struct sigaction action {};

  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace

void end_at_interrupt(std::string_view left) {
  const std::string text = str_cat("fathom: interrupted: ", left, "\n");
  g_farewell_size.store(0);
  const size_t size = std::min(text.size(), g_farewell.size());
  std::memcpy(g_farewell.data(), text.data(), size);
  g_farewell_size.store(size);

  struct sigaction before {};

  const bool ignored = sigaction(SIGINT, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
  if (!ignored) set_handler(say_and_end);
}

void install_interrupt_handler() {
  set_handler(note_interrupt);
}

bool take_interrupt() {
  return g_interrupted.exchange(false);
}

}  // namespace fathom::cli
