// HTTP/1.1 requests as bytes: where one ends, and what is no request. Strict where lenient readers
// have been fooled (request smuggling): lines end with CR LF, names and numbers have no spaces,
// there is one length. No sockets here; the bytes may come in any pieces, the result is the same.
//
//   RequestReader r(limits);
//   kHead   line and headers are there; head() may be looked at before the body is read
//   kBody   body_piece() is a part of the body, as it was sent (still packed)
//   kDone   the request is over; what remains of the input belongs to the next one
//   kError  error(); the connection cannot be used any more
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fathom/serve/exchange.h"

namespace fathom::serve {

/// Of reliability.md 2.2. Lengths do not count the line's end; the block counts it.
struct FramingLimits {
  int64_t request_line_bytes = 8 << 10;
  int64_t header_bytes = 16 << 10;
  int64_t block_bytes = 64 << 10;
  int64_t headers = 100;
  int64_t chunk_line_bytes = 1 << 10;   ///< size and extensions of a chunk
  int64_t max_body_bytes = 32ll << 20;  ///< as sent
};

/// What ends a connection: 400, 408, 413, 414 or 431.
struct FramingError {
  int status = 400;
  std::string code;  ///< of the table of errors: "bad_request", "body_too_large"
  std::string message;
};

struct RequestHead {
  std::string method;
  std::string target;  ///< as sent
  int minor = 1;       ///< HTTP/1.0 or HTTP/1.1
  std::vector<HttpHeader> headers;
  std::optional<int64_t> content_length;
  bool chunked = false;
  bool keep_alive = true;
  bool expects_continue = false;

  bool has_body() const { return chunked || content_length.value_or(0) > 0; }

  /// The value of a header, names compared without case; empty if it is absent.
  std::string_view header(std::string_view name) const;
  int count(std::string_view name) const;
};

/// Reads one request.
class RequestReader {
 public:
  enum class Event : uint8_t { kNeedMore, kHead, kBody, kDone, kError };

  explicit RequestReader(const FramingLimits& limits) : limits_(limits) {}

  /// Takes bytes from the front of `in` up to the next event. kNeedMore: all of it was taken.
  Event next(std::string_view& in);

  /// Whole from kHead on. After kError its method and target are there if the line was read.
  const RequestHead& head() const { return head_; }

  RequestHead& head() { return head_; }

  /// After kBody: part of the `in` that next() was given.
  std::string_view body_piece() const { return piece_; }

  const FramingError& error() const { return error_; }

  /// Whether a byte of a request has come (the empty line that may go before it is none).
  bool begun() const { return state_ != State::kLine || !line_.empty(); }

  /// Bytes held here.
  int64_t held_bytes() const { return held_; }

 private:
  enum class State : uint8_t {
    kLine,
    kHeaders,
    kBodyStart,
    kLength,
    kChunkLine,
    kChunkData,
    kChunkEnd,
    kTrailers,
    kDone,
    kFailed
  };
  enum class LineStep : uint8_t { kMore, kLine, kError };

  Event fail(int status, std::string_view code, std::string message);
  LineStep take_line(std::string_view& in);
  bool line_fits();
  Event on_line();
  bool on_request_line();
  bool on_header(bool trailer);
  bool on_head_end();
  bool read_lengths();
  bool on_chunk_line();
  Event take_body(std::string_view& in);
  Event body_start();

  FramingLimits limits_;
  State state_ = State::kLine;
  RequestHead head_;
  FramingError error_;
  std::string line_;         // of the head, so far, with its CR
  bool blank_seen_ = false;  // the one empty line before a request
  int64_t block_ = 0;        // bytes of finished header lines and trailers
  int64_t fields_ = 0;
  int64_t left_ = 0;        // of the body or of a chunk
  int64_t body_bytes_ = 0;  // of chunks
  int64_t held_ = 0;
  std::string_view piece_;
};

/// "a", "b" of "a , b": items of a header that is a list, without spaces around them.
std::vector<std::string_view> list_items(std::string_view value);

}  // namespace fathom::serve
