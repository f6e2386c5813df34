#include "fathom/bench/child_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fathom/os/file.h"

namespace fathom {
namespace {

// A message on the pipe: the letter, the number of bytes as uint64, the bytes.
constexpr size_t kHeadBytes = 9;

/// False when the reader is gone.
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

[[noreturn]] void be_child(int fd,
                           pid_t parent,
                           const std::function<void(const SendMessage&)>& work) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGINT, SIG_DFL);
  if (getppid() != parent) _exit(1);  // it died before the line above
  work([fd](char kind, std::string_view bytes) {
    std::array<char, kHeadBytes> head{kind};
    const uint64_t size = bytes.size();
    std::memcpy(head.data() + 1, &size, sizeof size);
    if (!write_all(fd, {head.data(), head.size()}) || !write_all(fd, bytes)) _exit(1);
  });
  _exit(0);  // the parent's buffers and handlers are the parent's
}

/// Takes whole messages off the front of `pending`.
void deliver(std::string& pending, const OnMessage& on_message) {
  size_t at = 0;
  while (pending.size() - at >= kHeadBytes) {
    uint64_t size = 0;
    std::memcpy(&size, pending.data() + at + 1, sizeof size);
    if (pending.size() - at - kHeadBytes < size) break;
    on_message(pending[at], std::string_view(pending).substr(at + kHeadBytes, size));
    at += kHeadBytes + size;
  }
  pending.erase(0, at);
}

/// True when there is something to read, or the end; false when `stop` says so first.
bool wait_for_message(int fd, const std::function<bool()>& stop) {
  constexpr int kAskEveryMs = 50;
  pollfd waits{.fd = fd, .events = POLLIN, .revents = 0};
  do {
    if (stop()) return false;
  } while (poll(&waits, 1, kAskEveryMs) <= 0);
  return true;
}

/// Until the child ends or has to: what it sent before that is read in any case.
void read_messages(int fd,
                   pid_t child,
                   const OnMessage& on_message,
                   const std::function<bool()>& stop) {
  std::string pending;
  std::array<char, 1 << 14> chunk;
  bool runs_on = true;
  for (;;) {
    if (stop && runs_on && !wait_for_message(fd, stop)) {
      kill(child, SIGKILL);
      runs_on = false;
    }
    const ssize_t got = read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    pending.append(chunk.data(), static_cast<size_t>(got));
    deliver(pending, on_message);
  }
}

ChildEnd wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return {str_cat("signal ", number, " (", std::string_view(strsignal(number)), ")")};
  }
  if (WEXITSTATUS(status) != 0) return {str_cat("exit code ", WEXITSTATUS(status))};
  return {};
}

}  // namespace

Result<ChildEnd> run_in_child(const std::function<void(const SendMessage& send)>& work,
                              const OnMessage& on_message,
                              const std::function<bool()>& stop) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return errno_status("make", "a pipe", errno);
  std::fflush(nullptr);  // or both processes print what waits
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    return errno_status("start", "a process for a kernel", error);
  }
  if (child == 0) {
    close(ends[0]);
    be_child(ends[1], parent, work);
  }
  close(ends[1]);
  read_messages(ends[0], child, on_message, stop);
  close(ends[0]);
  return wait_for(child);
}

}  // namespace fathom
