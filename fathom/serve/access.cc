#include "fathom/serve/access.h"

#include <algorithm>
#include <sys/stat.h>

#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"

namespace fathom::serve {
namespace {

constexpr size_t kMaxKeyBytes = 512;
constexpr int64_t kMaxFileBytes = 1 << 20;

constexpr std::array<std::string_view, 6> kHealthPaths = {
    "/health", "/health/live", "/health/ready", "/live", "/ready", "/ping"};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

Status ApiKeys::add(std::string_view key, std::string_view source) {
  if (key.empty()) return invalid_argument(str_cat(source, " holds an empty API key"));
  if (key.size() > kMaxKeyBytes) {
    return invalid_argument(str_cat(source, " holds an API key of ", key.size(),
                                    " bytes, expected at most ", kMaxKeyBytes));
  }
  if (!std::ranges::all_of(key, [](char c) { return c > 0x20 && c < 0x7f; })) {
    return invalid_argument(str_cat(
        source, " holds an API key with a space or a character that is no printable ASCII"));
  }
  const Sha256Digest digest = sha256(key);
  if (std::ranges::find(digests_, digest) == digests_.end()) digests_.push_back(digest);
  return {};
}

Status ApiKeys::add_lines(std::string_view text, std::string_view source) {
  int64_t number = 0;
  bool found = false;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
    if (line.empty() || line.front() == '#') continue;
    FATHOM_TRY(add(line, str_cat(source, " line ", number)));
    found = true;
  }
  if (!found) {
    return invalid_argument(str_cat(source, " holds no API key, expected one on each line"));
  }
  return {};
}

Result<std::string> ApiKeys::add_file(const std::string& path) {
  FATHOM_ASSIGN(const std::string text, read_file(path, kMaxFileBytes));
  FATHOM_TRY(add_lines(text, path));

  struct stat info {};

  if (stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    return str_cat("the API keys in ", path,
                   " can be read by others than the owner of the file (chmod 600 ", path,
                   " ends that)");
  }
  return std::string();
}

std::optional<Sha256Digest> ApiKeys::find(std::string_view key) const {
  const Sha256Digest asked = sha256(key);
  unsigned found = 0;
  for (const Sha256Digest& digest : digests_) {
    unsigned difference = 0;
    for (size_t i = 0; i < digest.size(); ++i)
      difference |= static_cast<unsigned>(digest[i] ^ asked[i]);
    found |= (difference - 1) >> 31;  // 1 for no difference
  }
  return found != 0 ? std::optional(asked) : std::nullopt;
}

bool is_open_path(std::string_view method, std::string_view path, const AccessRules& rules) {
  if (std::ranges::find(kHealthPaths, path) != kHealthPaths.end()) return true;
  if (path == "/") return method == "GET";
  return path == "/metrics" && rules.metrics_open;
}

std::string_view offered_key(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = request.header("Authorization");
  if (std::ranges::equal(authorization.substr(0, kBearer.size()), kBearer, {}, lower))
    return trimmed(authorization.substr(kBearer.size()));
  return request.header("x-api-key");
}

Access check_access(const HttpRequest& request, const ApiKeys& keys, const AccessRules& rules) {
  if (keys.empty()) return {};
  const std::string_view offered = offered_key(request);
  if (!offered.empty()) {
    if (const auto key = keys.find(offered)) return {.error = std::nullopt, .key = key};
  }
  if (is_open_path(request.method, request.path, rules)) return {};
  return {.error = ApiError{.status = 401,
                            .code = "invalid_api_key",
                            .message = offered.empty()
                                           ? "an API key is needed, as \"Authorization: Bearer "
                                             "KEY\" or \"x-api-key: KEY\""
                                           : "the API key is none of this server's",
                            .param = {}},
          .key = std::nullopt};
}

}  // namespace fathom::serve
