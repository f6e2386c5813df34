#include "fathom/text/base64.h"

#include <gtest/gtest.h>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

// RFC 4648, section 10.
TEST(Base64, AgreesWithThePublishedCases) {
  EXPECT_EQ(to_base64(""), "");
  EXPECT_EQ(to_base64("f"), "Zg==");
  EXPECT_EQ(to_base64("fo"), "Zm8=");
  EXPECT_EQ(to_base64("foo"), "Zm9v");
  EXPECT_EQ(to_base64("foob"), "Zm9vYg==");
  EXPECT_EQ(to_base64("fooba"), "Zm9vYmE=");
  EXPECT_EQ(to_base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(to_base64("\xfb\xff\xfe"), "+//+");
}

TEST(Base64, ReadsBackWhatItWrote) {
  Rng rng(1);
  for (size_t size = 0; size < 100; ++size) {
    std::string bytes;
    while (bytes.size() < size)
      bytes += static_cast<char>(rng.next_below(256));
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes) << size;
  }
}

TEST(Base64, RefusesEverythingElse) {
  for (const std::string_view text : {"Z", "Zg", "Zg=", "Zg===", "=g==", "Zg=a",
                                      "Zh==", "Zm9=", "Zg==Zg==", "Z-8=", "Zm9v\n", "===="})
    EXPECT_EQ(from_base64(text), std::nullopt) << text;
}

}  // namespace
}  // namespace fathom
