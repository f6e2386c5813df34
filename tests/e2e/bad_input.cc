#include "tests/e2e/bad_input.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;

void limit(__rlimit_resource resource, int64_t value) {
  const rlimit both{static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
  if (setrlimit(resource, &both) != 0) _exit(127);
}

void open_as(int descriptor, const char* path, int how) {
  if (path == nullptr) return;
  const int fd = ::open(path, how);
  if (fd < 0 || dup2(fd, descriptor) < 0) _exit(127);
}

// In the process that becomes the program.
void apply(const ProcessLimits& limits) {
  alarm(120);
  limit(RLIMIT_CORE, 0);
#ifndef FATHOM_SANITIZED
  limit(RLIMIT_AS, int64_t{6} << 30);  // sanitizers map terabytes
#endif
  if (limits.file_bytes >= 0) limit(RLIMIT_FSIZE, limits.file_bytes);
  open_as(STDIN_FILENO, limits.input, O_RDONLY);
  open_as(STDOUT_FILENO, limits.output, O_WRONLY);
  if (!limits.no_privileges || geteuid() != 0) return;
  // root without these rights is refused as its owner is: what is mode 000 stays closed.
  for (const int right : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) {
    if (prctl(PR_CAPBSET_DROP, right, 0, 0, 0) != 0) _exit(127);
  }
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

}  // namespace

Scene::Scene(const std::string& fixture) {
  fs::create_directory(model());
  for (const auto& entry :
       fs::directory_iterator(fs::path(FATHOM_SOURCE_DIR) / "tests/golden" / fixture)) {
    if (entry.path().stem() != "golden") fs::copy(entry.path(), model());
  }
}

void Scene::edit(const std::string& name, const std::string& from, const std::string& to) const {
  std::string text = read_all(file(name));
  const size_t at = text.find(from);
  if (at == text.npos) std::abort();  // the fixture changed: no test of this file means anything
  put(name, text.replace(at, from.size(), to));
}

void Scene::put(const std::string& name, const std::string& content) const {
  std::ofstream(file(name), std::ios::binary) << content;
}

void Scene::replace_by_quantised(const std::string& format,
                                 const std::vector<std::string>& more) const {
  const auto target = folder_ / "quantised";
  std::vector<std::string> args{"quantize", model().string(), target.string(),
                                "--format", format,           "-q"};
  args.insert(args.end(), more.begin(), more.end());
  const ProgramResult r = fathom(args);
  if (r.exit_code != 0) std::abort();
  fs::remove_all(model());
  fs::rename(target, model());
}

void Scene::quantize(const std::string& format, const std::vector<std::string>& more) const {
  replace_by_quantised(format, more);
  fs::remove(file(kJournal));
}

std::string Scene::quantize_with_journal() const {
  replace_by_quantised("nvfp4", {});
  return read_all(file(kJournal));
}

ProgramResult Scene::run(const ProcessLimits& limits) const {
  return fathom({"run", model().string(), "-p", "x", "--max-tokens", "2", "--threads", "1"}, {},
                limits);
}

ProgramResult Scene::fathom(const std::vector<std::string>& args,
                            const std::string& input,
                            const ProcessLimits& limits) const {
  return run_fathom(args, input, [&] { apply(limits); });
}

std::string Scene::without_paths(std::string text) const {
  replace_all(text, model().string(), "MODEL");
  replace_all(text, folder_.str(), "DIR");
  replace_all(text, FATHOM_SOURCE_DIR, "REPOSITORY");
  return text;
}

}  // namespace fathom::e2e
