// Runs the program as a user does and keeps what it printed.
#pragma once

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace fathom::e2e {

struct ProgramResult {
  int exit_code = -1;  ///< 128 + signal if it was killed
  std::string out;
  std::string err;
};

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// A folder of its own that goes away with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fathom-e2e-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }

  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  std::string str() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// PATH ARGS, with `input` on standard input. `before_exec` runs in the new process, for limits.
inline ProgramResult run_program(const std::string& path,
                                 const std::vector<std::string>& args,
                                 const std::string& input = {},
                                 const std::function<void()>& before_exec = {}) {
  TempFolder folder;
  const std::string out = (folder / "out").string();
  const std::string err = (folder / "err").string();
  const std::string in = (folder / "in").string();
  std::ofstream(in, std::ios::binary) << input;
  std::vector<std::string> words{path};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const auto redirect = [](const std::string& file, int flags, int target) {
      const int fd = ::open(file.c_str(), flags, 0600);
      if (fd < 0 || dup2(fd, target) < 0) _exit(127);
    };
    redirect(in, O_RDONLY, STDIN_FILENO);
    redirect(out, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
    redirect(err, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
    if (before_exec) before_exec();
    execv(path.c_str(), argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ProgramResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_all(out);
  result.err = read_all(err);
  return result;
}

/// fathom ARGS.
inline ProgramResult run_fathom(const std::vector<std::string>& args,
                                const std::string& input = {},
                                const std::function<void()>& before_exec = {}) {
  return run_program(FATHOM_PROGRAM, args, input, before_exec);
}

/// A line of bash that finds fathom first.
inline ProgramResult run_shell(const std::string& line, const std::string& input = {}) {
  const std::string here = std::filesystem::path(FATHOM_PROGRAM).parent_path().string();
  return run_program("/bin/bash", {"-c", "PATH='" + here + "':$PATH\n" + line}, input);
}

/// The model that ships with the repository.
inline std::string shipped_model() {
  return std::string(FATHOM_SOURCE_DIR) + "/models/tiny-v3-nvfp4";
}

}  // namespace fathom::e2e
