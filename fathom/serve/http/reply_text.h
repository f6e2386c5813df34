// Replies as bytes: status line, headers, chunks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fathom/serve/exchange.h"

namespace fathom::serve {

enum class BodyForm : uint8_t {
  kLength,   ///< Content-Length of the body
  kChunked,  ///< pieces with their sizes
  kToClose,  ///< HTTP/1.0: until the connection ends
};

/// What goes into a head besides the reply.
struct ReplyFrame {
  BodyForm form = BodyForm::kLength;
  bool close = false;  ///< Connection: close
  std::string_view request_id;
  std::string_view date;
  std::span<const HttpHeader> cors;
};

/// Appends status line and headers, with the empty line. Headers of the reply whose name is no word
/// or whose value holds a control character are left out, and so are those of the frame.
void append_head(std::string& out, const HttpReply& reply, const ReplyFrame& frame);

/// Appends a chunk. Nothing for an empty piece, which would end the body.
void append_chunk(std::string& out, std::string_view piece);

inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

/// "Sun, 06 Nov 1994 08:49:37 GMT" of seconds since 1970.
std::string http_date(int64_t unix_s);

/// Whether a reply with the status has no body at all.
bool bodiless(int status);

}  // namespace fathom::serve
