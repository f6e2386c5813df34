#include "fathom/serve/access.h"

#include <algorithm>
#include <sys/stat.h>

#include "fathom/base/ascii.h"
#include "fathom/base/log.h"
#include "fathom/os/file.h"
#include "fathom/os/sha256.h"

namespace fathom::serve {
namespace {

constexpr int64_t kMostKeyFileBytes = 1 << 20;

bool is_header_text(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

// The key of "Bearer K", the scheme without case, else of x-api-key.
std::string_view key_of(const HttpRequest& request) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view value = request.header("authorization");
  if (value.size() > kScheme.size() &&
      equal_without_case(value.substr(0, kScheme.size()), kScheme)) {
    return trimmed(value.substr(kScheme.size()));
  }
  return trimmed(request.header("x-api-key"));
}

}  // namespace

Status Access::add(std::string_view key, std::string_view source) {
  if (!is_header_text(key)) {
    return invalid_argument(str_cat(source,
                                    ": a key holds a blank or a character beyond ASCII, "
                                    "which no header can carry"));
  }
  digests_.push_back(sha256(key));
  return {};
}

Result<Access> Access::load(const KeySources& sources) {
  Access out;
  if (!sources.argument.empty()) {
    log_warn("--api-key shows in the list of processes; FATHOM_API_KEY or --api-key-file do not");
    FATHOM_TRY(out.add(trimmed(sources.argument), "--api-key"));
  }
  if (!sources.environment.empty()) {
    FATHOM_TRY(out.add(trimmed(sources.environment), "FATHOM_API_KEY"));
  }
  if (sources.file.empty()) return out;

  struct stat info {};

  if (::stat(sources.file.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    log_warn("--api-key-file ", sources.file, ": others may read it; chmod 600 it");
  }
  FATHOM_ASSIGN(const std::string text, read_file(sources.file, kMostKeyFileBytes));
  const size_t before = out.digests_.size();
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty() || line.front() == '#') continue;
    FATHOM_TRY(out.add(line, str_cat("--api-key-file ", sources.file)));
  }
  if (out.digests_.size() == before) {
    return invalid_argument(
        str_cat("--api-key-file ", sources.file, ": holds no key, expected one a line"));
  }
  return out;
}

std::optional<std::string> Access::check(const HttpRequest& request) const {
  if (open()) return std::string();
  const std::string_view key = key_of(request);
  const Digest asked = sha256(key);
  // Every byte of every key is looked at, whatever was found before.
  unsigned found = 0;
  for (const Digest& ours : digests_) {
    unsigned different = 0;
    for (size_t i = 0; i < ours.size(); ++i)
      different |= static_cast<unsigned>(ours[i] ^ asked[i]);
    found |= static_cast<unsigned>(different == 0);
  }
  if (found == 0 || key.empty()) return {};
  return to_hex(asked);
}

ApiError Access::refusal(const HttpRequest& request) const {
  const bool absent = key_of(request).empty();
  return {.status = 401,
          .code = "invalid_api_key",
          .message = absent ? "no API key was given; send Authorization: Bearer KEY or x-api-key"
                            : "the API key is not one of this server's",
          .param = {}};
}

}  // namespace fathom::serve
