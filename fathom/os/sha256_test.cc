#include "fathom/os/sha256.h"

#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "fathom/os/sha256_blocks.h"

namespace fathom {
namespace {

// Examples of FIPS 180-2, appendix B, and of NIST's "Examples with Intermediate Values".
TEST(Sha256, MatchesThePublishedVectors) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(to_hex(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                          "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu")),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(to_hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// NIST's CAVP file SHA256ShortMsg.rsp: one byte, and lengths around the padding's border.
TEST(Sha256, MatchesByteVectors) {
  EXPECT_EQ(to_hex(sha256("\xd3")),
            "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1");
  EXPECT_EQ(to_hex(sha256(std::string_view("\x11\xaf", 2))),
            "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98");
}

TEST(Sha256, PiecesDoNotMatterAtAnyLengthAroundABlock) {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text.push_back(static_cast<char>(i * 37));
  for (size_t size = 0; size <= text.size(); ++size) {
    const std::string_view whole(text.data(), size);
    const Sha256Digest expected = sha256(whole);
    for (const size_t cut : {size_t{0}, size_t{1}, size / 2, size}) {
      if (cut > size) continue;
      Sha256 hash;
      hash.update(whole.substr(0, cut)).update(whole.substr(cut));
      EXPECT_EQ(hash.finish(), expected) << size << " bytes cut at " << cut;
    }
    Sha256 bytewise;
    for (const char c : whole)
      bytewise.update(std::string_view(&c, 1));
    EXPECT_EQ(bytewise.finish(), expected) << size << " single bytes";
  }
}

TEST(Sha256, CopyContinuesFromTheCommonPrefix) {
  Sha256 prefix;
  prefix.update("common prefix, ");
  Sha256 copy = prefix;

  EXPECT_EQ(copy.update("first").finish(), sha256("common prefix, first"));
  EXPECT_EQ(prefix.update("second").finish(), sha256("common prefix, second"));
}

TEST(Sha256, InstructionsAgreeWithThePlainLoop) {
  if (!has_sha_instructions()) GTEST_SKIP() << "this processor has no SHA instructions";
  constexpr uint64_t kSeed = 3;
  std::mt19937_64 random(kSeed);
  for (const size_t num_blocks : {0, 1, 2, 3, 7}) {
    std::vector<uint8_t> data(64 * num_blocks);
    for (uint8_t& byte : data)
      byte = static_cast<uint8_t>(random());
    Sha256State plain;
    for (uint32_t& word : plain)
      word = static_cast<uint32_t>(random());
    Sha256State fast = plain;

    sha256_blocks_portable(plain, data.data(), num_blocks);
    sha256_blocks_x86(fast, data.data(), num_blocks);

    EXPECT_EQ(fast, plain) << num_blocks << " blocks, seed " << kSeed;
  }
}

TEST(Sha256, PlainLoopMatchesThePublishedVector) {
  // "abc", padded to one block by hand.
  std::vector<uint8_t> block(64, 0);
  block[0] = 'a';
  block[1] = 'b';
  block[2] = 'c';
  block[3] = 0x80;
  block[63] = 24;
  Sha256State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

  sha256_blocks_portable(state, block.data(), 1);

  EXPECT_EQ(state, (Sha256State{0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223, 0xb00361a3,
                                0x96177a9c, 0xb410ff61, 0xf20015ad}));
}

TEST(Sha256, FinishedHashTakesNoMoreData) {
  Sha256 hash;
  hash.finish();
  EXPECT_DEATH(hash.update("x"), "a finished hash is updated");
}

}  // namespace
}  // namespace fathom
