#include "fathom/serve/http/framing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

using testing::ElementsAre;

struct Outcome {
  int status = 0;  // of the error; 0: none
  bool done = false;
  std::string body;
  RequestHead head;
  std::string rest;
};

Outcome read(std::string_view bytes,
             size_t piece_bytes = std::string::npos,
             FramingLimits limits = {}) {
  RequestReader reader(limits);
  Outcome out;
  while (!bytes.empty()) {
    std::string_view piece = bytes.substr(0, piece_bytes);
    bytes.remove_prefix(piece.size());
    for (;;) {
      const auto event = reader.next(piece);
      if (event == RequestReader::Event::kNeedMore) break;
      if (event == RequestReader::Event::kHead) continue;
      if (event == RequestReader::Event::kBody) {
        out.body += reader.body_piece();
        continue;
      }
      out.done = event == RequestReader::Event::kDone;
      if (!out.done) out.status = reader.error().status;
      out.head = reader.head();
      out.rest = std::string(piece) + std::string(bytes);
      return out;
    }
  }
  return out;
}

std::string with_header(std::string_view header) {
  return "POST /x HTTP/1.1\r\nHost: a\r\n" + std::string(header) + "\r\n\r\n";
}

std::string chunked(std::string_view body) {
  return with_header("Transfer-Encoding: chunked") + std::string(body);
}

TEST(Framing, ReadsARequestAndLeavesTheNext) {
  const Outcome r =
      read("POST /v1/x?y HTTP/1.1\r\nHost: a:1\r\nX-A:  b \t\r\nContent-Length: 3\r\n\r\nabcGET /");

  EXPECT_TRUE(r.done);
  EXPECT_EQ(r.head.method, "POST");
  EXPECT_EQ(r.head.target, "/v1/x?y");
  EXPECT_EQ(r.head.header("x-a"), "b");
  EXPECT_EQ(r.body, "abc");
  EXPECT_EQ(r.rest, "GET /");
  EXPECT_TRUE(r.head.keep_alive);
}

TEST(Framing, ReadsChunksWithExtensionsAndTrailers) {
  const Outcome r = read(chunked("3;a=\"b\"\r\nabc\r\n0A\r\n0123456789\r\n000\r\nX: y\r\n\r\nGET"));

  EXPECT_TRUE(r.done);
  EXPECT_EQ(r.body, "abc0123456789");
  EXPECT_EQ(r.rest, "GET");
}

TEST(Framing, BytesInAnyPiecesGiveTheSame) {
  const std::string requests[] = {
      chunked("3;a=\"b\"\r\nabc\r\n0A\r\n0123456789\r\n0\r\nX: y\r\n\r\nGET"),
      with_header("Content-Length: 5") + "hello",
      with_header("Content-Length: 5, 5"),
      chunked("3\r\nabcd\r\n"),
      "GET / HTTP/1.1\nHost: a\r\n\r\n",
      "\r\nGET / HTTP/1.0\r\n\r\n",
  };
  for (const std::string& request : requests) {
    const Outcome whole = read(request);
    for (size_t size = 1; size < request.size(); ++size) {
      const Outcome pieces = read(request, size);
      EXPECT_EQ(pieces.status, whole.status) << request << " in pieces of " << size;
      EXPECT_EQ(pieces.done, whole.done) << request << " in pieces of " << size;
      EXPECT_EQ(pieces.body, whole.body) << request << " in pieces of " << size;
      EXPECT_EQ(pieces.rest, whole.rest) << request << " in pieces of " << size;
    }
  }
}

TEST(Framing, SkipsOneEmptyLineBeforeARequest) {
  EXPECT_TRUE(read("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").done);
  EXPECT_EQ(read("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").status, 400);
}

TEST(Framing, RefusesRequestLines) {
  const auto line = [](std::string_view text) {
    return read(std::string(text) + "\r\nHost: a\r\n\r\n").status;
  };
  EXPECT_EQ(line("GET / HTTP/1.1"), 0);
  EXPECT_EQ(line("GET /"), 400);
  EXPECT_EQ(line("GET  / HTTP/1.1"), 400);
  EXPECT_EQ(line("GET / HTTP/1.1 "), 400);
  EXPECT_EQ(line(" GET / HTTP/1.1"), 400);
  EXPECT_EQ(line("GET\t/\tHTTP/1.1"), 400);
  EXPECT_EQ(line("GET / HTTP/2.0"), 400);
  EXPECT_EQ(line("GET / http/1.1"), 400);
  EXPECT_EQ(line("GET / HTTP/1.10"), 400);
  EXPECT_EQ(line("G{T / HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /\x80 HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /\x01 HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /\rx HTTP/1.1"), 400);
  EXPECT_EQ(line(std::string(33, 'M') + " / HTTP/1.1"), 400);
  EXPECT_EQ(line("PRI * HTTP/2.0"), 400);
}

TEST(Framing, RefusesHeaders) {
  const auto header = [](std::string_view text) { return read(with_header(text)).status; };
  EXPECT_EQ(header("A: b"), 0);
  EXPECT_EQ(header("A:"), 0);
  EXPECT_EQ(header("A: \xc3\xa4"), 0);
  EXPECT_EQ(header("A : b"), 400);
  EXPECT_EQ(header("A"), 400);
  EXPECT_EQ(header(": b"), 400);
  EXPECT_EQ(header("A b: c"), 400);
  EXPECT_EQ(header("A: b\r\n folded"), 400);
  EXPECT_EQ(header("A: b\r\n\tfolded"), 400);
  EXPECT_EQ(header("A: b\nC: d"), 400);
  EXPECT_EQ(header("A: b\rC: d"), 400);
  EXPECT_EQ(header("A: b\r\r"), 400);
  EXPECT_EQ(header(std::string_view("A: b\0c", 6)), 400);
  EXPECT_EQ(header("A: b\x7f"), 400);
  EXPECT_EQ(header("A: b\x1b[2J"), 400);
  EXPECT_EQ(header("Host: b"), 400);
  EXPECT_EQ(header("Content-Type: a\r\ncontent-type: a"), 400);
  EXPECT_EQ(header("Authorization: a\r\nAuthorization: b"), 400);
  EXPECT_EQ(header("Expect: the-unexpected"), 417);
  EXPECT_EQ(read("GET / HTTP/1.1\r\n\r\n").status, 400) << "no Host";
  EXPECT_TRUE(read("GET / HTTP/1.0\r\n\r\n").done);
}

TEST(Framing, KeepsPercentEscapesOfHeaders) {
  EXPECT_EQ(read(with_header("A: %0d%0ab")).head.header("A"), "%0d%0ab");
}

TEST(Framing, RefusesLengths) {
  const auto length = [](std::string_view text) {
    return read(with_header("Content-Length: " + std::string(text))).status;
  };
  EXPECT_EQ(length("0"), 0);
  EXPECT_EQ(length("00"), 0);
  EXPECT_EQ(length(""), 400);
  EXPECT_EQ(length("+5"), 400);
  EXPECT_EQ(length("-5"), 400);
  EXPECT_EQ(length("5 5"), 400);
  EXPECT_EQ(length("5, 5"), 400);
  EXPECT_EQ(length("0x5"), 400);
  EXPECT_EQ(length("5.0"), 400);
  EXPECT_EQ(length("1e3"), 400);
  EXPECT_EQ(length("9223372036854775807"), 413);
  EXPECT_EQ(length("9223372036854775808"), 400);
  EXPECT_EQ(length("18446744073709551616"), 400);
  EXPECT_EQ(length("5\r\nContent-Length: 5"), 400);
  EXPECT_EQ(length("5\r\nTransfer-Encoding: chunked"), 400);
}

TEST(Framing, RefusesTransferEncodings) {
  const auto coding = [](std::string_view text) {
    return read(with_header("Transfer-Encoding: " + std::string(text)) + "0\r\n\r\n");
  };
  EXPECT_TRUE(coding("chunked").done);
  EXPECT_TRUE(coding("Chunked").done);
  EXPECT_EQ(coding("gzip").status, 400);
  EXPECT_EQ(coding("gzip, chunked").status, 400);
  EXPECT_EQ(coding("chunked, chunked").status, 400);
  EXPECT_EQ(coding("chunked;q=1").status, 400);
  EXPECT_EQ(coding("\x0b"
                   "chunked")
                .status,
            400);
  EXPECT_EQ(coding("xchunked").status, 400);
  EXPECT_EQ(coding("chunked\r\nTransfer-Encoding: chunked").status, 400);
  EXPECT_EQ(read("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").status, 400);
}

TEST(Framing, RefusesChunks) {
  const auto chunk = [](std::string_view text) { return read(chunked(text)).status; };
  EXPECT_EQ(chunk("1\r\na\r\n0\r\n\r\n"), 0);
  EXPECT_EQ(chunk("-2\r\n"), 400);
  EXPECT_EQ(chunk("+1\r\n"), 400);
  EXPECT_EQ(chunk(" 1\r\n"), 400);
  EXPECT_EQ(chunk("1 \r\n"), 400);
  EXPECT_EQ(chunk("1 ;a\r\n"), 400);
  EXPECT_EQ(chunk("0x1\r\n"), 400);
  EXPECT_EQ(chunk("g\r\n"), 400);
  EXPECT_EQ(chunk("\r\n"), 400);
  EXPECT_EQ(chunk(";a\r\n"), 400);
  EXPECT_EQ(chunk("1\n"), 400);
  EXPECT_EQ(chunk("1\r\nab\r\n"), 400);
  EXPECT_EQ(chunk("1\r\na\n"), 400);
  EXPECT_EQ(chunk("8000000000000000\r\n"), 400);
  EXPECT_EQ(chunk("7fffffffffffffff\r\n"), 413);
  EXPECT_EQ(chunk("00000000000000001\r\n"), 400) << "17 digits";
  EXPECT_EQ(chunk("1;\x01\r\n"), 400);
  EXPECT_EQ(chunk("0\r\nA : b\r\n\r\n"), 400);
  EXPECT_EQ(chunk("0\r\n folded\r\n\r\n"), 400);
}

// ---- limits, at the most and one above -------------------------------------------------------

std::string line_of(size_t bytes) {
  return "GET /" + std::string(bytes - 14, 'p') + " HTTP/1.1\r\nHost: a\r\n\r\n";
}

TEST(Framing, LimitsTheRequestLine) {
  EXPECT_TRUE(read(line_of(8'192)).done);
  EXPECT_EQ(read(line_of(8'193)).status, 414);
  EXPECT_EQ(read(std::string(8'193, 'G')).status, 414) << "before the line ends";
}

TEST(Framing, LimitsOneHeader) {
  EXPECT_EQ(read(with_header("A: " + std::string(16'384 - 3, 'v'))).status, 0);
  EXPECT_EQ(read(with_header("A: " + std::string(16'385 - 3, 'v'))).status, 431);
  EXPECT_EQ(read("GET / HTTP/1.1\r\nHost: a\r\nA: " + std::string(16'385 - 3, 'v')).status, 431);
}

TEST(Framing, LimitsTheNumberOfHeaders) {
  const auto headers = [](int count) {
    std::string text = "GET / HTTP/1.1\r\nHost: a\r\n";
    for (int i = 1; i < count; ++i)
      text += "A: b\r\n";
    return read(text + "\r\n");
  };
  EXPECT_TRUE(headers(100).done);
  EXPECT_EQ(headers(101).status, 431);
}

TEST(Framing, LimitsTheBlockOfHeaders) {
  const auto block = [](int bytes) {
    std::string text = "Host: a\r\n";
    while (static_cast<int>(text.size()) < bytes) {
      const int line = std::min(10'000, bytes - static_cast<int>(text.size()));
      text += "A: " + std::string(static_cast<size_t>(line - 5), 'v') + "\r\n";
    }
    return read("GET / HTTP/1.1\r\n" + text + "\r\n");
  };
  EXPECT_TRUE(block(65'536).done);
  EXPECT_EQ(block(65'537).status, 431);
}

TEST(Framing, LimitsTrailersAsHeaders) {
  std::string trailers;
  for (int i = 0; i < 100; ++i)
    trailers += "A: b\r\n";
  EXPECT_TRUE(read(chunked("0\r\n" + trailers + "\r\n")).done);
  EXPECT_EQ(read(chunked("0\r\n" + trailers + "A: b\r\n\r\n")).status, 431);
}

TEST(Framing, LimitsLinesOfChunks) {
  EXPECT_TRUE(read(chunked("0;" + std::string(1'022, 'e') + "\r\n\r\n")).done);
  EXPECT_EQ(read(chunked("0;" + std::string(1'023, 'e') + "\r\n\r\n")).status, 400);
}

TEST(Framing, LimitsTheBody) {
  const FramingLimits limits{.max_body_bytes = 10};
  const auto all = std::string::npos;
  EXPECT_EQ(read(with_header("Content-Length: 10") + "0123456789", all, limits).body.size(), 10u);
  EXPECT_EQ(read(with_header("Content-Length: 11"), all, limits).status, 413);
  EXPECT_TRUE(read(chunked("4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n"), all, limits).done);
  EXPECT_EQ(read(chunked("4\r\n0123\r\n7\r\n"), all, limits).status, 413);
}

TEST(Framing, FindsTheItemsOfALists) {
  EXPECT_THAT(list_items(" a ,, b c,\td"), ElementsAre("a", "b c", "d"));
  EXPECT_THAT(list_items(""), ElementsAre());
}

}  // namespace
}  // namespace fathom::serve
