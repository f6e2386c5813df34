#include "fathom/serve/kv_events/msgpack.h"

#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

std::string hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

std::string of(int64_t value) {
  return hex(MsgpackWriter().integer(value).take());
}

// Bytes by the specification's table of formats.
TEST(Msgpack, WritesIntegersInTheirShortestForm) {
  EXPECT_EQ(of(0), "00");
  EXPECT_EQ(of(127), "7f");
  EXPECT_EQ(of(128), "cc80");
  EXPECT_EQ(of(255), "ccff");
  EXPECT_EQ(of(256), "cd0100");
  EXPECT_EQ(of(65535), "cdffff");
  EXPECT_EQ(of(65536), "ce00010000");
  EXPECT_EQ(of(4294967295), "ceffffffff");
  EXPECT_EQ(of(4294967296), "cf0000000100000000");
  EXPECT_EQ(of(INT64_MAX), "cf7fffffffffffffff");
  EXPECT_EQ(hex(MsgpackWriter().unsigned_integer(UINT64_MAX).take()), "cfffffffffffffffff");
  EXPECT_EQ(of(-1), "ff");
  EXPECT_EQ(of(-32), "e0");
  EXPECT_EQ(of(-33), "d0df");
  EXPECT_EQ(of(-128), "d080");
  EXPECT_EQ(of(-129), "d1ff7f");
  EXPECT_EQ(of(-32768), "d18000");
  EXPECT_EQ(of(-32769), "d2ffff7fff");
  EXPECT_EQ(of(INT32_MIN), "d280000000");
  EXPECT_EQ(of(int64_t{INT32_MIN} - 1), "d3ffffffff7fffffff");
  EXPECT_EQ(of(INT64_MIN), "d38000000000000000");
}

TEST(Msgpack, WritesNilAndNumbers) {
  EXPECT_EQ(hex(MsgpackWriter().nil().take()), "c0");
  EXPECT_EQ(hex(MsgpackWriter().number(1.5).take()), "cb3ff8000000000000");
  EXPECT_EQ(hex(MsgpackWriter().number(-0.0).take()), "cb8000000000000000");
}

TEST(Msgpack, WritesHeadsOfStringsByTheirLength) {
  const auto head = [](size_t length, size_t bytes) {
    const std::string all = MsgpackWriter().string(std::string(length, 'a')).take();
    EXPECT_EQ(all.substr(bytes), std::string(length, 'a'));
    return hex(all.substr(0, bytes));
  };
  EXPECT_EQ(head(0, 1), "a0");
  EXPECT_EQ(head(31, 1), "bf");
  EXPECT_EQ(head(32, 2), "d920");
  EXPECT_EQ(head(255, 2), "d9ff");
  EXPECT_EQ(head(256, 3), "da0100");
  EXPECT_EQ(head(65535, 3), "daffff");
  EXPECT_EQ(head(65536, 5), "db00010000");
}

TEST(Msgpack, WritesHeadsOfArraysAndMapsByTheirSize) {
  EXPECT_EQ(hex(MsgpackWriter().array(0).take()), "90");
  EXPECT_EQ(hex(MsgpackWriter().array(15).take()), "9f");
  EXPECT_EQ(hex(MsgpackWriter().array(16).take()), "dc0010");
  EXPECT_EQ(hex(MsgpackWriter().array(65535).take()), "dcffff");
  EXPECT_EQ(hex(MsgpackWriter().array(65536).take()), "dd00010000");
  EXPECT_EQ(hex(MsgpackWriter().map(0).take()), "80");
  EXPECT_EQ(hex(MsgpackWriter().map(15).take()), "8f");
  EXPECT_EQ(hex(MsgpackWriter().map(16).take()), "de0010");
  EXPECT_EQ(hex(MsgpackWriter().map(65536).take()), "df00010000");
}

// The example on the first page of msgpack.org is {"compact": true, "schema": 0} with a boolean;
// this is its shape with a number.
TEST(Msgpack, WritesADocument) {
  MsgpackWriter w;
  w.map(2).string("compact").integer(1).string("schema").integer(0);
  EXPECT_EQ(hex(w.take()), "82a7636f6d7061637401a6736368656d6100");
  EXPECT_EQ(w.take(), "");
}

}  // namespace
}  // namespace fathom::serve
