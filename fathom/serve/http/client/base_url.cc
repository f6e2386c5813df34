#include "fathom/serve/http/client/base_url.h"

#include <algorithm>
#include <charconv>

#include "fathom/base/str_cat.h"

namespace fathom::serve {
namespace {

uint16_t usual_port(bool tls) {
  return tls ? 443 : 80;
}

std::string bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : str_cat("[", host, "]");
}

Status bad_url(std::string_view text, std::string_view why) {
  return invalid_argument(str_cat("the address is '", text, "', ", why,
                                  "; expected http://HOST:PORT or https://HOST[:PORT]"));
}

}  // namespace

std::string BaseUrl::address() const {
  return str_cat(bracketed(host), ":", port);
}

std::string BaseUrl::host_header() const {
  return port == usual_port(tls) ? bracketed(host) : address();
}

std::string BaseUrl::str() const {
  return str_cat(tls ? "https://" : "http://", host_header(), prefix);
}

Result<BaseUrl> parse_base_url(std::string_view text) {
  constexpr std::string_view kHttp = "http://", kHttps = "https://", kVersion = "/v1";
  BaseUrl url;
  url.tls = text.starts_with(kHttps);
  if (!url.tls && !text.starts_with(kHttp)) return bad_url(text, "which has no scheme");
  std::string_view rest = text.substr(url.tls ? kHttps.size() : kHttp.size());
  const bool printable =
      std::all_of(rest.begin(), rest.end(), [](char c) { return c > ' ' && c < '\x7F'; });
  if (!printable || rest.find_first_of("?#@\\\"<>") != std::string_view::npos) {
    return bad_url(text, "which has more than a host, a port and a path");
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view prefix = rest.substr(slash);
  rest = rest.substr(0, slash);
  while (prefix.ends_with('/'))
    prefix.remove_suffix(1);
  if (prefix.ends_with(kVersion)) prefix.remove_suffix(kVersion.size());
  url.prefix = prefix;
  if (rest.starts_with('[')) {
    const size_t end = rest.find(']');
    if (end == std::string_view::npos) return bad_url(text, "whose '[' is not closed");
    url.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
  } else {
    const size_t colon = std::min(rest.find(':'), rest.size());
    url.host = rest.substr(0, colon);
    rest.remove_prefix(colon);
  }
  if (url.host.empty()) return bad_url(text, "which has no host");
  url.port = usual_port(url.tls);
  if (rest.empty()) return url;
  const char* end = rest.data() + rest.size();
  const auto [at, error] = std::from_chars(rest.data() + 1, end, url.port);
  if (rest.front() != ':' || error != std::errc{} || at != end || url.port == 0) {
    return bad_url(text, "whose port is no number from 1 to 65535");
  }
  return url;
}

}  // namespace fathom::serve
