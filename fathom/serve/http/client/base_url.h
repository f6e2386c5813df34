// The address of a server, as flags give it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom::serve {

struct BaseUrl {
  bool tls = false;
  std::string host;  ///< without brackets
  uint16_t port = 0;
  std::string prefix;  ///< what stands before every path: "/api", or nothing

  /// "127.0.0.1:8000", "[::1]:443".
  std::string address() const;

  /// The Host header: the port only where it is not the scheme's own.
  std::string host_header() const;

  std::string str() const;
};

/// "http://host:port/prefix", also https and [IPv6]. A "/v1" at the end is dropped, since paths
/// begin with it. Errors: InvalidArgument for anything else, user names and queries included.
Result<BaseUrl> parse_base_url(std::string_view text);

}  // namespace fathom::serve
