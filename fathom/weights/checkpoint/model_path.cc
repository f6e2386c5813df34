#include "fathom/weights/checkpoint/model_path.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "fathom/base/hint.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"
#include "fathom/weights/checkpoint/gguf.h"
#include "fathom/weights/checkpoint/safetensors.h"

namespace fathom {
namespace {

constexpr int64_t kMaxRefBytes = 1024;

// Letters, digits, '.', '_', '-', and '/' where it may stand; no "..", no empty part.
bool is_safe(std::string_view text, bool with_slash) {
  // Names of the hub begin with none of these; "./model" is a path.
  if (text.empty() || text.front() == '/' || text.front() == '.' || text.back() == '/')
    return false;
  if (text.find("..") != text.npos || text.find("//") != text.npos) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || (with_slash && c == '/');
  });
}

struct HubName {
  std::string_view org;
  std::string_view name;
  std::string_view revision;
};

std::optional<HubName> parse_hub_name(std::string_view model) {
  const size_t at = model.find('@');
  const std::string_view path = model.substr(0, at);
  const size_t slash = path.find('/');
  if (slash == path.npos) return std::nullopt;
  const HubName hub = {path.substr(0, slash), path.substr(slash + 1),
                       at == model.npos ? std::string_view("main") : model.substr(at + 1)};
  if (!is_safe(hub.org, false) || !is_safe(hub.name, false) || !is_safe(hub.revision, true)) {
    return std::nullopt;
  }
  return hub;
}

// Only what the first bytes say counts, not the name.
Status refuse_gguf_file(const std::string& path) {
  Result<File> file = File::open(path);
  std::array<char, 4> magic{};
  const bool is_gguf = file.ok() && file->size() >= 4 &&
                       file->read_at(0, std::as_writable_bytes(std::span(magic))).ok() &&
                       std::string_view(magic.data(), magic.size()) == "GGUF";
  return is_gguf ? refuse_gguf(path) : Status{};
}

// The snapshot of `revision` in one cached model, or why there is none.
Result<std::string> find_snapshot(const std::string& folder, std::string_view revision) {
  const auto snapshot = [&](std::string_view commit) {
    return join_path(join_path(folder, "snapshots"), commit);
  };
  if (path_kind(snapshot(revision)) == PathKind::kDirectory) return snapshot(revision);
  const std::string ref = join_path(join_path(folder, "refs"), revision);
  if (path_kind(ref) != PathKind::kFile) {
    return not_found(str_cat(folder, ": has no revision ", revision));
  }
  FATHOM_ASSIGN(std::string commit, read_file(ref, kMaxRefBytes));
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' '))
    commit.pop_back();
  if (!is_safe(commit, false)) {
    return corrupt(str_cat(ref, ": holds ", quoted(commit), ", expected a commit"));
  }
  if (path_kind(snapshot(commit)) != PathKind::kDirectory) {
    return not_found(str_cat(ref, ": names commit ", commit, ", whose snapshot is not there"));
  }
  return snapshot(commit);
}

}  // namespace

Result<std::string> resolve_model(std::string_view model,
                                  std::span<const std::string> cache_roots) {
  const std::string path(model);
  switch (path_kind(path)) {
    case PathKind::kDirectory:
      return path;
    case PathKind::kFile:
      FATHOM_TRY(refuse_gguf_file(path));
      [[fallthrough]];
    case PathKind::kOther:
      return with_hint(corrupt(str_cat("model ", quoted(model),
                                       " is a file, expected a directory in Hugging Face layout")),
                       "name the directory that holds config.json, tokenizer.json and the weights");
    case PathKind::kMissing:
      break;
  }
  const std::optional<HubName> hub = parse_hub_name(model);
  if (!hub) {
    return with_hint(not_found(str_cat("model ", quoted(model),
                                       " is no directory, and not of the form ORG/NAME[@REV]")),
                     errno_hint(path, ENOENT));
  }
  const std::string option =
      hub->revision == "main" ? std::string() : str_cat(" --revision ", hub->revision);
  const std::string fetch =
      str_cat("fathom does not download: hf download ", hub->org, "/", hub->name, option);
  std::string places;
  for (const std::string& root : cache_roots) {
    const std::string folder = join_path(root, str_cat("models--", hub->org, "--", hub->name));
    if (path_kind(folder) == PathKind::kDirectory) {
      Result<std::string> snapshot = find_snapshot(folder, hub->revision);
      if (snapshot.ok()) return snapshot;
      return with_hint(std::move(snapshot).status(), fetch);
    }
    str_append(places, str_cat(places.empty() ? "" : ", ", root));
  }
  return with_hint(not_found(str_cat("model ", model, " is no directory, and not in the cache (",
                                     places.empty() ? "none is known" : places, ")")),
                   fetch);
}

}  // namespace fathom
