// How the server listens and what it allows: the numbers of reliability.md 2.2, each with the flag
// that moves it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/serve/http/framing.h"

namespace fathom::serve {

struct HttpSettings {
  std::string host = "127.0.0.1";  ///< a name or an address; "::1" without brackets
  int port = 8000;                 ///< 0: a free one is picked
  std::string uds_path;            ///< a Unix socket in place of host and port

  std::string tls_key_file;  ///< PEM; both or none
  std::string tls_cert_file;

  std::string root_path;                   ///< "/fathom": taken off the front of paths that have it
  std::vector<std::string> cors_origins;   ///< "https://chat.example.org", exactly
  std::vector<std::string> allowed_hosts;  ///< names in Host besides those of the loopback

  int64_t max_connections = 10'240;                ///< never above the limit of descriptors - 256
  int64_t max_body_bytes = 32ll << 20;             ///< unpacked
  int64_t max_buffered_input_bytes = 512ll << 20;  ///< of all requests together, heads included
  int64_t stream_buffer_bytes = 1ll << 20;         ///< a stream with more unsent is given up
  FramingLimits framing;                           ///< its max_body_bytes is set from the one above

  int64_t header_timeout_ms = 10'000;
  int64_t body_timeout_ms = 60'000;
  int64_t slowest_body_bytes_per_s = 1'024;  ///< on average, once the grace is over
  int64_t slow_body_grace_ms = 5'000;
  int64_t idle_timeout_ms = 120'000;  ///< of a connection without a request
  int64_t write_stall_ms = 60'000;    ///< a client that takes nothing for so long is given up
  int64_t ping_interval_ms = 15'000;  ///< of streams; 0: never
  int64_t linger_ms = 2'000;          ///< a client may read the last reply for so long

  bool tls() const { return !tls_cert_file.empty(); }
};

/// The hard limits of the flags.
inline constexpr int64_t kMaxConnections = 65'536;
inline constexpr int64_t kMaxBodyBytes = 256ll << 20;
inline constexpr int64_t kMaxStreamBufferBytes = 16ll << 20;

/// InvalidArgument for a number out of its range, half a pair of TLS files, an origin that is no
/// exact one; the message names the flag.
Status check_settings(const HttpSettings& settings);

enum class NoAuth : uint8_t { kRefused, kInsecure };

/// Whether the server may listen there: an address that others reach needs keys, or the insecure
/// flag. InvalidArgument names --api-key-file and --insecure-no-auth.
Status check_bind(const HttpSettings& settings, bool has_keys, NoAuth no_auth);

/// "localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]".
bool is_loopback_name(std::string_view host);

}  // namespace fathom::serve
