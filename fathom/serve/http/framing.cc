#include "fathom/serve/http/framing.h"

#include <algorithm>
#include <array>
#include <limits>

#include "fathom/base/ascii.h"
#include "fathom/base/str_cat.h"

namespace fathom::serve {
namespace {

constexpr int64_t kMaxMethodBytes = 32;

bool is_token_char(char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
  return c != 0 && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_token_char);
}

// Visible text, spaces, tabs and bytes above ASCII.
bool is_value_char(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 ? byte != 0x7f : byte == '\t';
}

// Digits and nothing else.
std::optional<int64_t> plain_number(std::string_view text, int base) {
  if (text.empty()) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    const int digit = hex_value(c);
    if (digit < 0 || digit >= base) return std::nullopt;
    if (value > (std::numeric_limits<int64_t>::max() - digit) / base) return std::nullopt;
    value = value * base + digit;
  }
  return value;
}

// Headers that may come once: who reads the first and who reads the last would disagree.
constexpr std::array<std::string_view, 6> kSingle = {
    "Host", "Content-Length", "Transfer-Encoding", "Content-Type", "Authorization", "Expect"};

constexpr std::string_view kSpaces = " \t";  // what a header may have around its value
constexpr std::string_view kBad = "bad_request";
constexpr std::string_view kHeadersTooLarge = "headers_too_large";

}  // namespace

std::vector<std::string_view> list_items(std::string_view value) {
  std::vector<std::string_view> items;
  while (!value.empty()) {
    const size_t comma = std::min(value.find(','), value.size());
    if (const auto item = trimmed(value.substr(0, comma), kSpaces); !item.empty())
      items.push_back(item);
    value.remove_prefix(std::min(value.size(), comma + 1));
  }
  return items;
}

std::string_view RequestHead::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_without_case(key, name)) return value;
  }
  return {};
}

int RequestHead::count(std::string_view name) const {
  return static_cast<int>(std::ranges::count_if(
      headers, [&](const HttpHeader& h) { return equal_without_case(h.first, name); }));
}

RequestReader::Event RequestReader::fail(int status, std::string_view code, std::string message) {
  state_ = State::kFailed;
  error_ = {.status = status, .code = std::string(code), .message = std::move(message)};
  return Event::kError;
}

RequestReader::Event RequestReader::next(std::string_view& in) {
  for (;;) {
    switch (state_) {
      case State::kDone:
        return Event::kDone;
      case State::kFailed:
        return Event::kError;
      case State::kBodyStart:
        if (const Event event = body_start(); event != Event::kNeedMore) return event;
        break;
      case State::kLength:
      case State::kChunkData:
        if (const Event event = take_body(in); event != Event::kDone) return event;
        break;
      case State::kLine:
      case State::kHeaders:
      case State::kChunkLine:
      case State::kChunkEnd:
      case State::kTrailers: {
        const LineStep step = take_line(in);
        if (step == LineStep::kMore) return Event::kNeedMore;
        if (step == LineStep::kError) return Event::kError;
        if (const Event event = on_line(); event != Event::kNeedMore) return event;
        break;
      }
    }
  }
}

// Each byte is looked at when it comes, so that pieces do not change which error is found.
RequestReader::LineStep RequestReader::take_line(std::string_view& in) {
  while (!in.empty()) {
    const char c = in.front();
    in.remove_prefix(1);
    const bool after_cr = !line_.empty() && line_.back() == '\r';
    if (c == '\n') {
      if (!after_cr) {
        fail(400, kBad, "a line ends with LF alone, expected CR LF");
        return LineStep::kError;
      }
      line_.pop_back();
      return LineStep::kLine;
    }
    if (after_cr) {
      fail(400, kBad, "CR without LF within a line");
      return LineStep::kError;
    }
    if (c == '\0') {
      fail(400, kBad, "a zero byte in the head of the request");
      return LineStep::kError;
    }
    line_.push_back(c);
    if (c != '\r' && !line_fits()) return LineStep::kError;
  }
  return LineStep::kMore;
}

// After each byte but CR.
bool RequestReader::line_fits() {
  const auto size = static_cast<int64_t>(line_.size());
  switch (state_) {
    case State::kLine:
      if (size <= limits_.request_line_bytes) return true;
      fail(414, "uri_too_long",
           str_cat("the request line is longer than ", limits_.request_line_bytes, " bytes"));
      return false;
    case State::kHeaders:
    case State::kTrailers:
      if (size > limits_.header_bytes) {
        fail(431, kHeadersTooLarge,
             str_cat("a header is longer than ", limits_.header_bytes, " bytes"));
        return false;
      }
      if (fields_ >= limits_.headers) {
        fail(431, kHeadersTooLarge, str_cat("more than ", limits_.headers, " headers"));
        return false;
      }
      if (block_ + size + 2 <= limits_.block_bytes) return true;
      fail(431, kHeadersTooLarge,
           str_cat("the headers are longer than ", limits_.block_bytes, " bytes together"));
      return false;
    case State::kChunkLine:
      if (size <= limits_.chunk_line_bytes) return true;
      fail(400, kBad,
           str_cat("the line of a chunk is longer than ", limits_.chunk_line_bytes, " bytes"));
      return false;
    case State::kChunkEnd:
      fail(400, kBad, "a chunk is longer than its size says");
      return false;
    case State::kBodyStart:
    case State::kLength:
    case State::kChunkData:
    case State::kDone:
    case State::kFailed:
      break;
  }
  return true;
}

// kNeedMore: go on.
RequestReader::Event RequestReader::on_line() {
  bool ok = true;
  switch (state_) {
    case State::kLine:
      if (line_.empty() && !blank_seen_) {
        blank_seen_ = true;
        return Event::kNeedMore;
      }
      ok = on_request_line();
      if (ok) state_ = State::kHeaders;
      break;
    case State::kHeaders:
      if (line_.empty()) {
        if (!on_head_end()) return Event::kError;
        state_ = State::kBodyStart;
        std::string().swap(line_);
        return Event::kHead;
      }
      ok = on_header(false);
      break;
    case State::kChunkLine:
      ok = on_chunk_line();
      break;
    case State::kChunkEnd:
      state_ = State::kChunkLine;
      break;
    case State::kTrailers:
      if (line_.empty()) {
        state_ = State::kDone;
        return Event::kDone;
      }
      ok = on_header(true);
      break;
    case State::kBodyStart:
    case State::kLength:
    case State::kChunkData:
    case State::kDone:
    case State::kFailed:
      break;
  }
  line_.clear();
  return ok ? Event::kNeedMore : Event::kError;
}

bool RequestReader::on_request_line() {
  const std::string_view line = line_;
  const size_t first = line.find(' ');
  const size_t second = first == line.npos ? line.npos : line.find(' ', first + 1);
  if (second == line.npos || line.find(' ', second + 1) != line.npos) {
    fail(400, kBad, "the request line is not METHOD, space, target, space, HTTP/1.1");
    return false;
  }
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (!is_token(method) || static_cast<int64_t>(method.size()) > kMaxMethodBytes) {
    fail(400, kBad, "the method is no word of letters");
    return false;
  }
  const auto visible = [](char c) { return c > 0x20 && c < 0x7f; };
  if (target.empty() || !std::ranges::all_of(target, visible)) {
    fail(400, kBad, "the target of the request holds bytes that must be escaped");
    return false;
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    fail(400, kBad, "the version is neither HTTP/1.1 nor HTTP/1.0");
    return false;
  }
  head_.method = method;
  head_.target = target;
  head_.minor = version.back() - '0';
  held_ += static_cast<int64_t>(line_.size());
  return true;
}

bool RequestReader::on_header(bool trailer) {
  block_ += static_cast<int64_t>(line_.size()) + 2;
  ++fields_;
  const std::string_view line = line_;
  if (line.front() == ' ' || line.front() == '\t') {
    fail(400, kBad, "a header goes on in the next line, which is obsolete");
    return false;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos || !is_token(line.substr(0, colon))) {
    fail(400, kBad, "a header is not NAME: VALUE, with no space before the colon");
    return false;
  }
  const std::string_view value = trimmed(line.substr(colon + 1), kSpaces);
  if (!std::ranges::all_of(value, is_value_char)) {
    fail(400, kBad, str_cat("the header ", line.substr(0, colon), " holds a control character"));
    return false;
  }
  if (trailer) return true;
  head_.headers.emplace_back(line.substr(0, colon), value);
  held_ += static_cast<int64_t>(line_.size() + 2 * sizeof(std::string));
  return true;
}

bool RequestReader::on_head_end() {
  for (const std::string_view name : kSingle) {
    if (head_.count(name) <= 1) continue;
    fail(400, kBad, str_cat("more than one ", name, " header"));
    return false;
  }
  if (head_.minor == 1 && head_.count("Host") == 0) {
    fail(400, kBad, "no Host header, which HTTP/1.1 needs");
    return false;
  }
  if (!read_lengths()) return false;
  head_.keep_alive = head_.minor == 1;
  for (const auto& [name, value] : head_.headers) {
    if (!equal_without_case(name, "Connection")) continue;
    for (const std::string_view word : list_items(value)) {
      if (equal_without_case(word, "close")) head_.keep_alive = false;
    }
  }
  const std::string_view expect = head_.header("Expect");
  if (!expect.empty() && !equal_without_case(expect, "100-continue")) {
    fail(417, "expectation_failed", "Expect is known with 100-continue only");
    return false;
  }
  head_.expects_continue = !expect.empty() && head_.minor == 1;
  return true;
}

bool RequestReader::read_lengths() {
  const bool has_length = head_.count("Content-Length") > 0;
  if (head_.count("Transfer-Encoding") > 0) {
    if (has_length) {
      fail(400, kBad, "Content-Length and Transfer-Encoding together");
      return false;
    }
    if (head_.minor == 0 || !equal_without_case(head_.header("Transfer-Encoding"), "chunked")) {
      fail(400, kBad, "Transfer-Encoding is known as chunked in HTTP/1.1 only");
      return false;
    }
    head_.chunked = true;
  }
  if (!has_length) return true;
  head_.content_length = plain_number(head_.header("Content-Length"), 10);
  if (!head_.content_length) {
    fail(400, kBad, "Content-Length is no plain number");
    return false;
  }
  return true;
}

RequestReader::Event RequestReader::body_start() {
  if (head_.chunked) {
    state_ = State::kChunkLine;
    block_ = 0;
    fields_ = 0;
    return Event::kNeedMore;
  }
  left_ = head_.content_length.value_or(0);
  if (left_ > limits_.max_body_bytes) {
    return fail(413, "body_too_large",
                str_cat("the body is of ", left_, " bytes, at most ", limits_.max_body_bytes,
                        " are read (--max-body-mb)"));
  }
  state_ = left_ > 0 ? State::kLength : State::kDone;
  return Event::kNeedMore;
}

bool RequestReader::on_chunk_line() {
  const std::string_view line = line_;
  const size_t semicolon = std::min(line.find(';'), line.size());
  const auto size = semicolon <= 16 ? plain_number(line.substr(0, semicolon), 16) : std::nullopt;
  if (!size) {
    fail(400, kBad, "the size of a chunk is no plain hexadecimal number");
    return false;
  }
  if (!std::ranges::all_of(line.substr(semicolon), is_value_char)) {
    fail(400, kBad, "the extension of a chunk holds a control character");
    return false;
  }
  if (*size > limits_.max_body_bytes - body_bytes_) {
    fail(413, "body_too_large",
         str_cat("the body is longer than ", limits_.max_body_bytes, " bytes (--max-body-mb)"));
    return false;
  }
  left_ = *size;
  body_bytes_ += left_;
  state_ = left_ > 0 ? State::kChunkData : State::kTrailers;
  return true;
}

// kDone: the part with a known length is over, go on.
RequestReader::Event RequestReader::take_body(std::string_view& in) {
  if (left_ == 0) {
    state_ = state_ == State::kLength ? State::kDone : State::kChunkEnd;
    return Event::kDone;
  }
  if (in.empty()) return Event::kNeedMore;
  piece_ = in.substr(0, static_cast<size_t>(left_));
  in.remove_prefix(piece_.size());
  left_ -= static_cast<int64_t>(piece_.size());
  return Event::kBody;
}

}  // namespace fathom::serve
