#include "cli/chat/text_editor.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/flags.h"
#include "cli/io/text_input.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"

namespace fathom::cli {
namespace {

// A folder that only its owner may read, gone with the object.
class PrivateFolder {
 public:
  PrivateFolder() {
    const std::string root = environment("TMPDIR");
    path_ = join_path(root.empty() ? "/tmp" : root, "fathom-chat-XXXXXX");
    if (mkdtemp(path_.data()) == nullptr) error_ = errno;
  }

  ~PrivateFolder() {
    if (error_ != 0) return;
    ::unlink(file().c_str());
    ::rmdir(path_.c_str());
  }

  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  Status status() const { return error_ == 0 ? Status{} : errno_status("make", path_, error_); }

  std::string file() const { return join_path(path_, "message.txt"); }

 private:
  std::string path_;
  int error_ = 0;
};

// Runs the editor, which may be a command with arguments, on the terminal. The signals of its keys
// are its own meanwhile.
Status run_editor(const std::string& editor, const std::string& file) {
  struct sigaction ignored {};

  ignored.sa_handler = SIG_IGN;

  struct sigaction before {};

  sigaction(SIGINT, &ignored, &before);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t usual;
  sigemptyset(&usual);
  sigaddset(&usual, SIGINT);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const std::string command = editor + " \"$1\"";
  const char* argv[] = {"sh", "-c", command.c_str(), "sh", file.c_str(), nullptr};
  pid_t child = 0;
  const int error =
      posix_spawn(&child, "/bin/sh", nullptr, &attributes, const_cast<char**>(argv), environ);
  posix_spawnattr_destroy(&attributes);
  int status = 0;
  if (error == 0) {
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  sigaction(SIGINT, &before, nullptr);
  if (error != 0) return errno_status("run", "/bin/sh", error);
  if (status != 0) {
    return unavailable(str_cat("the editor '", editor, "' did not end well (",
                               WIFEXITED(status) ? str_cat("exit code ", WEXITSTATUS(status))
                                                 : str_cat("signal ", WTERMSIG(status)),
                               "); VISUAL or EDITOR names another, and /edit TEXT needs none"));
  }
  return {};
}

}  // namespace

Result<std::string> edit_text(const std::string& text) {
  std::string editor = environment("VISUAL");
  if (editor.empty()) editor = environment("EDITOR");
  if (editor.empty()) editor = "vi";
  const PrivateFolder folder;
  FATHOM_TRY(folder.status());
  FATHOM_TRY(write_file(folder.file(), text + "\n"));
  FATHOM_TRY(run_editor(editor, folder.file()));
  return read_prompt_text(folder.file());
}

}  // namespace fathom::cli
