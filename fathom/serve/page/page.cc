#include "fathom/serve/page/page.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "fathom/os/sha256.h"
#include "fathom/serve/page/page_bytes.h"

namespace fathom::serve {
namespace {

// RFC 4648, with padding.
std::string base64(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < n ? bytes[i + j] : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += j <= n ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

// "'sha256-...'" of what stands between the first <tag> and its end, or "'none'".
std::string source_of(std::string_view html, std::string_view tag) {
  const std::string open = "<" + std::string(tag) + ">";
  const std::string close = "</" + std::string(tag) + ">";
  const size_t begin = html.find(open);
  if (begin == std::string_view::npos) return "'none'";
  const size_t end = html.find(close, begin);
  if (end == std::string_view::npos) return "'none'";
  const size_t from = begin + open.size();
  return "'sha256-" + base64(sha256(html.substr(from, end - from))) + "'";
}

// Whether an Accept header names text/html. "*/*" alone is curl's, not a browser's.
bool accepts_html(std::string_view accept) {
  constexpr std::string_view kHtml = "text/html";
  const auto same = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
  return std::search(accept.begin(), accept.end(), kHtml.begin(), kHtml.end(), same) !=
         accept.end();
}

constexpr std::string_view kHint =
    "fathom serves a model here.\n"
    "\n"
    "  GET  v1/models             the names it answers to\n"
    "  POST v1/chat/completions   chat, as of OpenAI\n"
    "  POST v1/messages           chat, as of Anthropic\n"
    "  GET  health                ready or not\n"
    "  GET  metrics               figures, in Prometheus' text\n"
    "\n"
    "In a browser this address is a page for chat and live figures.\n";

}  // namespace

std::string_view page_html() {
  return {reinterpret_cast<const char*>(kPageBytes), kPageSize};
}

std::string security_policy_of(std::string_view html) {
  return "default-src 'none'; script-src " + source_of(html, "script") + "; style-src " +
         source_of(html, "style") +
         "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
         "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
}

const std::string& page_security_policy() {
  static const std::string policy = security_policy_of(page_html());
  return policy;
}

HttpReply page_reply(const HttpRequest& request) {
  HttpReply reply;
  reply.headers = {{"Cache-Control", "no-cache"},
                   {"Vary", "Accept"},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"}};
  if (accepts_html(request.header("Accept"))) {
    reply.content_type = "text/html; charset=utf-8";
    reply.headers.emplace_back("Content-Security-Policy", page_security_policy());
    reply.body = page_html();
  } else {
    reply.content_type = "text/plain; charset=utf-8";
    reply.body = kHint;
  }
  return reply;
}

}  // namespace fathom::serve
