#include "fathom/serve/sse.h"

#include <gtest/gtest.h>
#include <vector>

namespace fathom::serve {
namespace {

std::vector<SseEvent> read(const std::vector<std::string>& pieces) {
  std::vector<SseEvent> events;
  SseParser parser;
  for (const std::string& piece : pieces)
    EXPECT_TRUE(parser.push(piece, [&](const SseEvent& e) { events.push_back(e); }).ok());
  return events;
}

const std::string kStream =
    "\xEF\xBB\xBF: hello\n\ndata: {\"a\":1}\n\n: ping\n\nevent: delta\r\ndata:x\r\ndata:  y\r\n\r\n"
    "id: 7\rretry: 10\rdata\r\revent: only\n\ndata: [DONE]\n\ndata: cut";

const std::vector<SseEvent> kEvents = {
    {"message", "{\"a\":1}"}, {"delta", "x\n y"}, {"message", ""}, {"message", "[DONE]"}};

TEST(SseParser, ReadsFieldsCommentsAndAllLineEnds) {
  EXPECT_EQ(read({kStream}), kEvents);
}

TEST(SseParser, AnyTwoCutsGiveTheSameEvents) {
  for (size_t a = 0; a <= kStream.size(); ++a) {
    for (size_t b = a; b <= kStream.size(); ++b) {
      const auto events = read({kStream.substr(0, a), kStream.substr(a, b - a), kStream.substr(b)});
      ASSERT_EQ(events, kEvents) << "cut at " << a << " and " << b;
    }
  }
}

TEST(SseParser, ByteForByteGivesTheSameEvents) {
  std::vector<std::string> bytes;
  for (const char c : kStream)
    bytes.emplace_back(1, c);

  EXPECT_EQ(read(bytes), kEvents);
}

TEST(SseParser, RefusesAnEventAboveTheLimitForGood) {
  SseParser parser(8);
  const auto none = [](const SseEvent&) { FAIL() << "no event was complete"; };

  const Status s = parser.push("data: 123\n\n", none);

  EXPECT_EQ(s.code(), StatusCode::kCorrupt);
  EXPECT_EQ(s.message(), "an event of the stream has more than 8 bytes");
  EXPECT_FALSE(parser.push("data: 1\n\n", none).ok());
}

TEST(SseParser, CountsTheDataOfAllLinesOfAnEvent) {
  SseParser parser(20);
  int events = 0;
  const auto count = [&](const SseEvent&) { ++events; };

  EXPECT_TRUE(parser.push("data: 12345678\n\ndata: 12345678\n\n", count).ok());
  EXPECT_FALSE(parser.push("data: 12345678\ndata: 12345678\n\n", count).ok());

  EXPECT_EQ(events, 2);
}

}  // namespace
}  // namespace fathom::serve
