#include "fathom/serve/http/reply_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <time.h>

#include "fathom/base/ascii.h"
#include "fathom/base/str_cat.h"
#include "fathom/serve/http/framing.h"

namespace fathom::serve {
namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Other";
  }
}

bool good_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

bool good_value(std::string_view value) {
  return std::ranges::all_of(value, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte != 0x7f;
  });
}

constexpr std::array<std::string_view, 6> kOfFrame = {
    "Content-Type", "Content-Length", "Transfer-Encoding", "Connection", "Date", "X-Request-Id"};

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ").append(value).append("\r\n");
}

}  // namespace

bool bodiless(int status) {
  return status == 204 || status == 304;
}

void append_head(std::string& out, const HttpReply& reply, const ReplyFrame& frame) {
  str_append(out, "HTTP/1.1 ");
  str_append(out, reply.status);
  out.append(" ").append(reason(reply.status)).append("\r\n");
  append_header(out, "Date", frame.date);
  if (!bodiless(reply.status)) {
    if (!reply.content_type.empty() && good_value(reply.content_type))
      append_header(out, "Content-Type", reply.content_type);
    switch (frame.form) {
      case BodyForm::kLength:
        append_header(out, "Content-Length", str_cat(reply.body.size()));
        break;
      case BodyForm::kChunked:
        append_header(out, "Transfer-Encoding", "chunked");
        break;
      case BodyForm::kToClose:
        break;
    }
  }
  append_header(out, "X-Request-Id", frame.request_id);
  for (const auto& [name, value] : frame.cors)
    append_header(out, name, value);
  for (const auto& header : reply.headers) {
    const auto& [name, value] = header;
    const auto same = [&](std::string_view other) {
      return equal_without_case(header.first, other);
    };
    if (good_name(name) && good_value(value) && std::ranges::none_of(kOfFrame, same))
      append_header(out, name, value);
  }
  if (frame.close) append_header(out, "Connection", "close");
  out.append("\r\n");
}

void append_chunk(std::string& out, std::string_view piece) {
  if (piece.empty()) return;
  std::array<char, 16> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), piece.size(), 16);
  out.append(digits.data(), end.ptr).append("\r\n").append(piece).append("\r\n");
}

std::string http_date(int64_t unix_s) {
  const time_t seconds = unix_s;
  tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 40> text;
  // The names are English whatever the locale: the process never sets one.
  const size_t size = strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text.data(), size};
}

}  // namespace fathom::serve
