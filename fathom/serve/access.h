// Who may use the server: API keys, compared without telling how close a guess was.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/serve/api_error.h"
#include "fathom/serve/exchange.h"

namespace fathom::serve {

/// Where keys come from; all count.
struct KeySources {
  std::string file;         ///< one a line; empty lines and those that begin with # are none
  std::string argument;     ///< --api-key
  std::string environment;  ///< FATHOM_API_KEY
};

class Access {
 public:
  /// Without keys: everybody.
  Access() = default;

  /// Reads the keys. Warns of a file that others may read. Errors: Io for a file that cannot be
  /// read; InvalidArgument for one without a key, and for keys with characters that no header has.
  static Result<Access> load(const KeySources& sources);

  /// Whether no key is asked for.
  bool open() const { return digests_.empty(); }

  /// The digest in hex of the key that a request carries (`Authorization: Bearer K` or
  /// `x-api-key: K`), if it is one of ours; empty where no key is asked for. All keys are compared,
  /// as digests of one length, with no early end.
  std::optional<std::string> check(const HttpRequest& request) const;

  /// 401 for a request that check() refused.
  ApiError refusal(const HttpRequest& request) const;

 private:
  using Digest = std::array<uint8_t, 32>;

  Status add(std::string_view key, std::string_view source);

  std::vector<Digest> digests_;
};

}  // namespace fathom::serve
