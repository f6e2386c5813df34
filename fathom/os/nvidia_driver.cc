#include "fathom/os/nvidia_driver.h"

#include <algorithm>
#include <string_view>

#include "fathom/base/ascii.h"
#include "fathom/os/file.h"

namespace fathom {
namespace {

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan ...": the first word of
// digits and points behind the module.
std::string version_in(std::string_view text) {
  const size_t module = text.find("Kernel Module");
  if (module == std::string_view::npos) return {};
  text = text.substr(module, text.find('\n', module) - module);
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    const bool numbers = std::all_of(word.begin(), word.end(),
                                     [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
    if (numbers && word.find('.') != std::string_view::npos) return std::string(word);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return {};
}

// The line "Model: \t\t NVIDIA H200".
std::string model_in(std::string_view text) {
  constexpr std::string_view kKey = "Model:";
  const size_t begin = text.find(kKey);
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin + kKey.size());
  return std::string(trimmed(text.substr(0, text.find('\n'))));
}

}  // namespace

std::optional<NvidiaDriver> nvidia_driver(const std::string& directory) {
  const Result<std::string> version = read_kernel_file(join_path(directory, "version"));
  if (!version.ok()) return std::nullopt;
  NvidiaDriver out{.version = version_in(*version), .gpus = {}};
  const std::string cards = join_path(directory, "gpus");
  const Result<std::vector<std::string>> names = list_directory(cards);
  if (!names.ok()) return out;
  for (const std::string& name : *names) {
    const auto text = read_kernel_file(join_path(join_path(cards, name), "information"));
    const std::string model = text.ok() ? model_in(*text) : std::string{};
    out.gpus.push_back(model.empty() ? "a GPU without a name" : model);
  }
  return out;
}

}  // namespace fathom
