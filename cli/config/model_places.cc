#include "cli/config/model_places.h"

#include <algorithm>
#include <climits>
#include <unistd.h>

#include "cli/flags.h"
#include "fathom/os/file.h"

namespace fathom::cli {
namespace {

// The directory of this program, links followed; empty where the system does not tell.
std::string program_directory() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return {};
  return parent_directory(std::string_view(path, static_cast<size_t>(length)));
}

// Names in a directory; none where it cannot be read.
std::vector<std::string> names_in(const std::string& directory) {
  Result<std::vector<std::string>> names = list_directory(directory);
  return names.ok() ? *std::move(names) : std::vector<std::string>{};
}

// "models--ORG--NAME" as "ORG/NAME"; empty for another name.
std::string hub_name(std::string_view folder) {
  constexpr std::string_view kPrefix = "models--";
  if (!folder.starts_with(kPrefix)) return {};
  folder.remove_prefix(kPrefix.size());
  const size_t dashes = folder.find("--");
  if (dashes == folder.npos) return {};
  return str_cat(folder.substr(0, dashes), "/", folder.substr(dashes + 2));
}

}  // namespace

std::vector<std::string> shipped_model_roots() {
  const std::string here = program_directory();
  if (here.empty()) return {};
  const std::string above = parent_directory(here);
  std::vector<std::string> roots{join_path(above, "share/fathom/models")};
  if (base_name(above) == "build") roots.push_back(join_path(parent_directory(above), "models"));
  std::erase_if(roots,
                [](const std::string& root) { return path_kind(root) != PathKind::kDirectory; });
  return roots;
}

std::vector<std::string> hub_cache_roots() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return {cache};
  if (const std::string home = environment("HF_HOME"); !home.empty()) return {home + "/hub"};
  const std::string user = environment("HOME");
  if (user.empty()) return {};
  return {user + "/.cache/huggingface/hub"};
}

std::vector<std::string> known_models() {
  std::vector<std::string> out;
  for (const std::string& root : shipped_model_roots()) {
    for (const std::string& name : names_in(root))
      if (path_kind(join_path(root, name + "/config.json")) == PathKind::kFile) out.push_back(name);
  }
  for (const std::string& root : hub_cache_roots()) {
    for (const std::string& folder : names_in(root))
      if (std::string name = hub_name(folder); !name.empty()) out.push_back(std::move(name));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace fathom::cli
