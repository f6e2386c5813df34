#include "cli/io/png.h"

#include <array>
#include <cerrno>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"

extern char** environ;

namespace fathom::cli {
namespace {

constexpr const char* kConverter = "rsvg-convert";

/// A file in memory, for what goes to a program and comes back.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("picture", MFD_CLOEXEC)) {}

  ~MemoryFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }

  /// Errors: Io.
  Status fill(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return errno_status("write", "the picture to memory", errno);
      bytes.remove_prefix(static_cast<size_t>(put));
    }
    if (lseek(fd_, 0, SEEK_SET) < 0) return errno_status("read", "the picture in memory", errno);
    return {};
  }

  std::string content() const {
    std::string out;
    std::array<char, 1 << 16> part;
    off_t at = 0;
    for (ssize_t got = 0; (got = ::pread(fd_, part.data(), part.size(), at)) > 0; at += got)
      out.append(part.data(), static_cast<size_t>(got));
    return out;
  }

 private:
  int fd_;
};

Status not_installed() {
  return unsupported(
      "--png needs rsvg-convert, which is not installed\nhint: it comes with the package "
      "librsvg2-bin");
}

/// Runs `rsvg-convert --format png` on the SVG, from its standard input to its output.
Result<std::string> convert(std::string_view svg) {
  const MemoryFile in;
  const MemoryFile out;
  if (in.fd() < 0 || out.fd() < 0) return errno_status("open", "a file in memory", errno);
  FATHOM_TRY(in.fill(svg));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.fd(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.fd(), STDOUT_FILENO);
  std::string words[] = {kConverter, "--format", "png"};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) return not_installed();
  if (error != 0) return errno_status("run", kConverter, error);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return not_installed();
  std::string png = out.content();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !png.empty()) return png;
  return io_error(str_cat(kConverter, " could not draw the picture"));
}

}  // namespace

Status write_png(std::string_view svg, const std::string& path) {
  FATHOM_TRY(check_writable(path));
  Result<std::string> png = convert(svg);
  if (!png.ok()) return std::move(png).status().add_context(path);
  return write_file(path, *png);
}

}  // namespace fathom::cli
