#include "fathom/serve/http/client/reply_parser.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <limits>

#include "fathom/base/str_cat.h"

namespace fathom::serve {
namespace {

constexpr uint32_t kMaxHeaderBytes = 64 * 1024;

std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

ReplyParser::ReplyParser(std::function<void(const ReplyHead&)> on_head,
                         std::function<void(std::string_view)> on_body)
    : on_head_(std::move(on_head)), on_body_(std::move(on_body)) {
  eager(true);
  body_limit(std::numeric_limits<std::uint64_t>::max());  // none is taken for 0 by Boost 1.74
  header_limit(kMaxHeaderBytes);
}

Status ReplyParser::push(std::string& bytes) {
  any_byte_ = any_byte_ || !bytes.empty();
  size_t used = 0;
  Error error;
  while (!is_done() && used < bytes.size()) {
    const size_t taken = put(boost::asio::buffer(bytes.data() + used, bytes.size() - used), error);
    used += taken;
    if (error || taken == 0) break;
  }
  bytes.erase(0, used);
  if (!error || error == boost::beast::http::error::need_more) return {};
  return corrupt(str_cat("the reply is no HTTP/1.1: ", error.message()));
}

Status ReplyParser::end() {
  if (is_done()) return {};
  Error error;
  if (any_byte_) put_eof(error);
  if (any_byte_ && !error && is_done()) return {};
  return io_error("the reply is not complete");
}

void ReplyParser::on_response_impl(int code, Text reason, int, Error&) {
  head_ = ReplyHead{.status = code, .reason = std::string(view(reason)), .headers = {}};
}

void ReplyParser::on_field_impl(boost::beast::http::field, Text name, Text value, Error&) {
  head_.headers.emplace_back(view(name), view(value));
}

void ReplyParser::on_header_impl(Error&) {
  on_head_(head_);
}

std::size_t ReplyParser::on_body_impl(Text body, Error&) {
  body_bytes_ += static_cast<int64_t>(body.size());
  on_body_(view(body));
  return body.size();
}

std::size_t ReplyParser::on_chunk_body_impl(std::uint64_t, Text body, Error& error) {
  return on_body_impl(body, error);
}

}  // namespace fathom::serve
