// Connections over HTTP without sockets. The first byte picks limits and the size of pieces; the
// rest is what the client sends. Oracles:
//
//   the requests, their bodies and the refusal are the same whole, by the byte and in pieces
//   a request has one outcome, and nothing is read behind a refusal that ends the connection
//   no more memory is held than the budget has, and none at the end
//   what is accepted has one Host, one length, and no control characters
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fathom/base/str_cat.h"
#include "fathom/serve/http/incoming_request.h"

namespace {

using fathom::serve::HttpSettings;
using fathom::serve::IncomingRequest;
using fathom::serve::InputBudget;
using Stage = IncomingRequest::Stage;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void check_accepted(const IncomingRequest& request) {
  const auto& head = request.head();
  require(head.count("Host") == 1, "accepted without one Host");
  require(head.count("Content-Length") + head.count("Transfer-Encoding") <= 1, "two lengths");
  require(head.headers.size() <= 100, "too many headers");
  for (const auto& [name, value] : head.headers) {
    require(!name.empty() && name.find_first_of(" \t\r\n:") == name.npos, "a bad name");
    require(std::ranges::none_of(value, [](char c) { return c == '\r' || c == '\n' || c == 0; }),
            "a bad value");
  }
  const std::string& path = request.plan().path;
  require(path == "*" || path.starts_with('/'), "a bad path");
  require(std::ranges::none_of(path, [](char c) { return c > 0 && c < 0x20; }), "control in path");
}

// Everything that the server would have done, as text.
template <class SizeOfPiece>
std::string serve(const HttpSettings& settings,
                  std::string_view bytes,
                  const SizeOfPiece& size_of_piece) {
  const auto budget = std::make_shared<InputBudget>(settings.max_buffered_input_bytes);
  std::string log;
  const fathom::serve::HeadRules rules{.loopback_bind = true};
  auto request = std::make_unique<IncomingRequest>(settings, rules, budget);
  bool open = true;
  while (open && !bytes.empty()) {
    std::string_view piece = bytes.substr(0, size_of_piece(bytes));
    bytes.remove_prefix(piece.size());
    while (open) {
      const Stage stage = request->feed(piece);
      require(budget->held_bytes() <= settings.max_buffered_input_bytes, "more than the budget");
      if (!request->done()) {
        require(piece.empty(), "input was left that is needed");
        break;
      }
      open = request->reusable() && request->head().keep_alive;
      if (stage == Stage::kRefused) {
        const auto& e = request->error();
        require(e.status >= 400 && !e.code.empty() && !e.message.empty(), "an empty refusal");
        fathom::str_append(log, fathom::str_cat("refused ", e.status, " ", e.message, "\n"));
      } else {
        check_accepted(*request);
        const auto r = request->take_request();
        require(static_cast<int64_t>(r.body.size()) <= settings.max_body_bytes, "a long body");
        fathom::str_append(
            log, fathom::str_cat(r.method, " ", r.path, " ", r.query, " ", r.headers.size(), " ",
                                 r.body, open ? "\n" : " last\n"));
      }
      request = std::make_unique<IncomingRequest>(settings, rules, budget);
    }
  }
  if (request->begun()) fathom::str_append(log, "and a part\n");
  request.reset();
  require(budget->held_bytes() == 0, "memory is held at the end");
  return log;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  HttpSettings settings;
  settings.max_body_bytes = 4'096;
  settings.max_buffered_input_bytes = 64 << 20;
  if ((data[0] & 1) != 0) {
    settings.framing = {.request_line_bytes = 40,
                        .header_bytes = 60,
                        .block_bytes = 150,
                        .headers = 5,
                        .chunk_line_bytes = 10};
    settings.max_body_bytes = 20;
  }
  if ((data[0] & 2) != 0) {
    settings.root_path = "/api";
    settings.cors_origins = {"https://a.example"};
  }
  const size_t step = (data[0] >> 2) + size_t{2};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);

  const std::string whole = serve(settings, bytes, [](std::string_view b) { return b.size(); });
  require(serve(settings, bytes, [](std::string_view) { return size_t{1}; }) == whole,
          "the outcome depends on the pieces (bytes)");
  require(serve(settings, bytes, [&](std::string_view) { return step; }) == whole,
          "the outcome depends on the pieces (steps)");
  require(serve(settings, bytes,
                [](std::string_view b) {
                  return size_t{1} + static_cast<unsigned char>(b.front()) % 13;
                }) == whole,
          "the outcome depends on the pieces (sizes from the text)");
  return 0;
}
