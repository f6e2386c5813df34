// One reply of HTTP/1.1, from bytes in any pieces.
#pragma once

#include <boost/beast/http/basic_parser.hpp>
#include <functional>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/serve/http/client/http_client.h"

namespace fathom::serve {

/// Parses a status line, headers and a body of known length, in chunks, or up to the end of the
/// connection. Interim replies (1xx) are read over by the caller: they are done without a body.
class ReplyParser final : public boost::beast::http::basic_parser<false> {
 public:
  /// Both are called while bytes are pushed, the head first.
  ReplyParser(std::function<void(const ReplyHead&)> on_head,
              std::function<void(std::string_view)> on_body);

  /// Takes bytes from the front of `bytes`; what belongs to a next reply stays. Errors: Corrupt.
  Status push(std::string& bytes);

  /// The connection ended. Errors: Io if the reply is not complete.
  Status end();

  bool any_byte() const { return any_byte_; }

  int64_t body_bytes() const { return body_bytes_; }

 private:
  using Error = boost::beast::error_code;
  using Text = boost::beast::string_view;

  void on_request_impl(boost::beast::http::verb, Text, Text, int, Error&) override {}

  void on_response_impl(int code, Text reason, int version, Error& error) override;
  void on_field_impl(boost::beast::http::field, Text name, Text value, Error& error) override;
  void on_header_impl(Error& error) override;

  void on_body_init_impl(const boost::optional<std::uint64_t>&, Error&) override {}

  std::size_t on_body_impl(Text body, Error& error) override;

  void on_chunk_header_impl(std::uint64_t, Text, Error&) override {}

  std::size_t on_chunk_body_impl(std::uint64_t remain, Text body, Error& error) override;

  void on_finish_impl(Error&) override {}

  std::function<void(const ReplyHead&)> on_head_;
  std::function<void(std::string_view)> on_body_;
  ReplyHead head_;
  bool any_byte_ = false;
  int64_t body_bytes_ = 0;
};

}  // namespace fathom::serve
