// A person at a terminal: types, waits for what appears, types on.
#pragma once

#include <algorithm>
#include <cstring>
#include <poll.h>
#include <pty.h>
#include <utility>

#include "tests/e2e/program.h"

namespace fathom::e2e {

class Typing {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  /// Starts PATH ARGS on a terminal of its own. TERM is xterm unless `environment` says otherwise.
  Typing(const std::string& path,
         const std::vector<std::string>& args,
         const Environment& environment = {}) {
    std::vector<std::string> words{path};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    const winsize size{.ws_row = 24, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (child_ == 0) {
      unsetenv("NO_COLOR");
      setenv("TERM", "xterm", 1);
      for (const auto& [name, value] : environment)
        setenv(name.c_str(), value.c_str(), 1);
      execv(path.c_str(), argv.data());
      _exit(127);
    }
  }

  ~Typing() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(terminal_);
  }

  Typing(const Typing&) = delete;
  Typing& operator=(const Typing&) = delete;

  void type(const std::string& keys) {
    if (::write(terminal_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
      std::abort();
  }

  /// Waits until `text` appears behind what earlier waits found; false where the program ended or
  /// was silent for a minute before it did.
  bool sees(const std::string& text) {
    for (;;) {
      const size_t at = shown_.find(text, seen_);
      if (at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      if (!read_more()) return false;
    }
  }

  /// The exit code, 128 + signal if it was killed.
  int end() {
    while (read_more()) {
    }
    int status = 0;
    ::waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  /// All that appeared so far.
  const std::string& shown() const { return shown_; }

  pid_t child() const { return child_; }

 private:
  bool read_more() {
    constexpr int kMinuteMs = 60'000;
    pollfd wait{.fd = terminal_, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, kMinuteMs) <= 0) return false;
    char buffer[4096];
    const ssize_t got = ::read(terminal_, buffer, sizeof buffer);
    if (got <= 0) return false;
    shown_.append(buffer, static_cast<size_t>(got));
    return true;
  }

  int terminal_ = -1;
  pid_t child_ = -1;
  std::string shown_;
  size_t seen_ = 0;
};

/// What a terminal sends for a paste.
inline std::string paste(const std::string& text) {
  std::string keys = text;
  std::replace(keys.begin(), keys.end(), '\n', '\r');
  return "\033[200~" + keys + "\033[201~";
}

}  // namespace fathom::e2e
