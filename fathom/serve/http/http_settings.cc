#include "fathom/serve/http/http_settings.h"

#include <algorithm>
#include <arpa/inet.h>

#include "fathom/base/ascii.h"
#include "fathom/base/str_cat.h"

namespace fathom::serve {
namespace {

struct Range {
  std::string_view flag;
  int64_t value;
  int64_t least;
  int64_t most;
};

// "https://chat.example.org:8443": scheme and authority, no path, no '*'.
bool is_exact_origin(std::string_view origin) {
  const size_t colon = origin.find("://");
  if (colon == origin.npos || colon == 0) return false;
  const std::string_view authority = origin.substr(colon + 3);
  return !authority.empty() && std::ranges::all_of(origin, [](char c) {
    return c > 0x20 && c < 0x7f && c != '*' && c != ',' && c != '"';
  }) && authority.find_first_of("/?#@") == authority.npos;
}

}  // namespace

bool is_loopback_name(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (equal_without_case(host, "localhost") || equal_without_case(host, "localhost.")) return true;
  const std::string text(host);
  in6_addr six{};
  if (inet_pton(AF_INET6, text.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  in_addr four{};
  return inet_pton(AF_INET, text.c_str(), &four) == 1 && (ntohl(four.s_addr) >> 24) == 127;
}

Status check_settings(const HttpSettings& s) {
  const Range ranges[] = {
      {"--port", s.port, 0, 65'535},
      {"--max-connections", s.max_connections, 1, kMaxConnections},
      {"--max-body-mb (in bytes)", s.max_body_bytes, 1, kMaxBodyBytes},
      {"--stream-buffer-bytes", s.stream_buffer_bytes, 1, kMaxStreamBufferBytes},
      {"--idle-timeout (in ms)", s.idle_timeout_ms, 1, INT64_MAX / 2'000'000},
      {"--sse-ping-interval (in ms)", s.ping_interval_ms, 0, INT64_MAX / 2'000'000},
  };
  for (const Range& r : ranges) {
    if (r.value >= r.least && r.value <= r.most) continue;
    return invalid_argument(
        str_cat(r.flag, " is ", r.value, ", expected ", r.least, " to ", r.most));
  }
  if (s.tls_key_file.empty() != s.tls_cert_file.empty()) {
    return invalid_argument(str_cat(s.tls_key_file.empty() ? "--ssl-certfile without --ssl-keyfile"
                                                           : "--ssl-keyfile without --ssl-certfile",
                                    ": TLS needs both"));
  }
  if (s.tls() && !s.uds_path.empty())
    return invalid_argument("--uds with --ssl-certfile: a Unix socket has no TLS");
  for (const std::string& origin : s.cors_origins) {
    if (is_exact_origin(origin)) continue;
    return invalid_argument(str_cat("--cors-origin \"", origin,
                                    "\" is no exact origin such as https://chat.example.org"));
  }
  if (!s.root_path.empty() && (s.root_path.front() != '/' || s.root_path.back() == '/')) {
    return invalid_argument(
        str_cat("--root-path \"", s.root_path, "\" must begin and must not end with '/'"));
  }
  return {};
}

Status check_bind(const HttpSettings& settings, bool has_keys, NoAuth no_auth) {
  if (has_keys || no_auth == NoAuth::kInsecure || !settings.uds_path.empty()) return {};
  if (is_loopback_name(settings.host)) return {};
  return invalid_argument(
      str_cat("--host ", settings.host,
              " can be reached from other machines, and there is no API key: give "
              "--api-key-file, or --insecure-no-auth to serve everybody"));
}

}  // namespace fathom::serve
