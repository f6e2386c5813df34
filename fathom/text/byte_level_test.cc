#include "fathom/text/byte_level.h"

#include <gtest/gtest.h>
#include <set>

namespace fathom {
namespace {

TEST(ByteLevel, MapsKnownBytes) {
  EXPECT_EQ(byte_level_char(0x00), 0x100u);
  EXPECT_EQ(byte_level_char(0x0A), 0x10Au);
  EXPECT_EQ(byte_level_char(0x20), 0x120u);
  EXPECT_EQ(byte_level_char(0x21), 0x21u);
  EXPECT_EQ(byte_level_char(0x7E), 0x7Eu);
  EXPECT_EQ(byte_level_char(0x7F), 0x121u);
  EXPECT_EQ(byte_level_char(0xA0), 0x142u);
  EXPECT_EQ(byte_level_char(0xA1), 0xA1u);
  EXPECT_EQ(byte_level_char(0xAD), 0x143u);
  EXPECT_EQ(byte_level_char(0xFF), 0xFFu);
}

TEST(ByteLevel, IsABijection) {
  std::set<char32_t> chars;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = byte_level_char(static_cast<uint8_t>(byte));
    chars.insert(c);
    EXPECT_EQ(byte_level_byte(c), byte);
  }
  EXPECT_EQ(chars.size(), 256u);
  int num_known = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c)
    num_known += byte_level_byte(c).has_value() ? 1 : 0;
  EXPECT_EQ(num_known, 256);
}

TEST(ByteLevel, DecodesEntries) {
  EXPECT_EQ(byte_level_decode(""), "");
  EXPECT_EQ(byte_level_decode("ĠtheĊ"), " the\n");
  EXPECT_EQ(byte_level_decode("Ã©"), "é");
  EXPECT_EQ(byte_level_decode("<think>"), "<think>");
}

TEST(ByteLevel, LeavesEntriesWithOtherCharactersAsTheyAre) {
  EXPECT_EQ(byte_level_decode("<｜User｜>"), "<｜User｜>");
  EXPECT_EQ(byte_level_decode("Ġ a"), "Ġ a");
}

TEST(ByteLevel, EncodesWhatItDecodes) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte)
    bytes.push_back(static_cast<char>(byte));

  EXPECT_EQ(byte_level_decode(byte_level_encode(bytes)), bytes);
  EXPECT_EQ(byte_level_encode(" a\n"), "ĠaĊ");
}

}  // namespace
}  // namespace fathom
