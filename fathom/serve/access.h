// Who may ask what: API keys and the paths that are open without one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/os/sha256.h"
#include "fathom/serve/api_error.h"
#include "fathom/serve/exchange.h"

namespace fathom::serve {

/// The keys, as digests; their text is not kept.
class ApiKeys {
 public:
  /// Adds a key. InvalidArgument (without the key in it) for one that is empty, longer than 512
  /// bytes, or holds a space or what no header can carry. `source` names the flag or file.
  Status add(std::string_view key, std::string_view source);

  /// Adds the keys of a text: one a line, spaces around it ignored, '#' begins a comment line.
  /// InvalidArgument naming the line; for a text without a key too.
  Status add_lines(std::string_view text, std::string_view source);

  /// Adds those of a file of at most 1 MiB. Errors: of read_file and add_lines. The value is a
  /// warning, empty if there is none: the file can be read by others than its owner.
  Result<std::string> add_file(const std::string& path);

  bool empty() const { return digests_.empty(); }

  size_t size() const { return digests_.size(); }

  /// The digest of the key if it is one of them. Takes as long whichever it is, and whether it is
  /// one: all digests are compared in full.
  std::optional<Sha256Digest> find(std::string_view key) const;

 private:
  std::vector<Sha256Digest> digests_;
};

/// Which doors stand open besides those of health.
struct AccessRules {
  bool metrics_open = false;  ///< --metrics-no-auth
};

/// Whether a path is open without a key: /live, /health/live, /ready, /health/ready, /health,
/// /ping, the page GET / (it holds no data), and /metrics where the rules say so.
bool is_open_path(std::string_view method, std::string_view path, const AccessRules& rules);

/// "K" of "Authorization: Bearer K", else of "x-api-key: K"; empty if there is neither.
std::string_view offered_key(const HttpRequest& request);

/// What a request may do.
struct Access {
  std::optional<ApiError> error;    ///< 401 invalid_api_key
  std::optional<Sha256Digest> key;  ///< for salts and limits of each key; none where none was given
};

/// Without keys everybody may ask everything. An open path takes any key, or none.
Access check_access(const HttpRequest& request, const ApiKeys& keys, const AccessRules& rules);

}  // namespace fathom::serve
