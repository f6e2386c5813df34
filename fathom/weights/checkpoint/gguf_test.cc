#include "fathom/weights/checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

std::string little_endian(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i)
    out += static_cast<char>(value >> (8 * i));
  return out;
}

std::string text(std::string_view value) {
  return little_endian(value.size(), 8) + std::string(value);
}

std::string pair(std::string_view key, int type, const std::string& value) {
  return text(key) + little_endian(static_cast<uint64_t>(type), 4) + value;
}

std::string file_of(const std::vector<std::string>& pairs) {
  std::string out = "GGUF" + little_endian(3, 4) + little_endian(0, 8);
  out += little_endian(pairs.size(), 8);
  for (const std::string& p : pairs)
    out += p;
  return out;
}

const std::string kDeepseek = pair("general.architecture", 8, text("deepseek2"));

TEST(Gguf, ArchitectureIsRead) {
  EXPECT_EQ(gguf_architecture(file_of({kDeepseek})), "deepseek2");
}

TEST(Gguf, ValuesBeforeItAreSkipped) {
  const std::string before = file_of({
      pair("general.alignment", 4, little_endian(32, 4)),
      pair("general.name", 8, text("x")),
      pair("flag", 7, "\x01"),
      pair("numbers", 9, little_endian(6, 4) + little_endian(2, 8) + std::string(8, 'f')),
      pair("words", 9, little_endian(8, 4) + little_endian(2, 8) + text("a") + text("bc")),
      pair("large", 12, std::string(8, 'd')),
      kDeepseek,
  });

  EXPECT_EQ(gguf_architecture(before), "deepseek2");
}

TEST(Gguf, EveryCutGivesNothing) {
  const std::string whole = file_of({pair("general.name", 8, text("x")), kDeepseek});

  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(gguf_architecture(whole.substr(0, size)), "") << size;
}

TEST(Gguf, LengthsBeyondTheFileGiveNothing) {
  const std::string huge = little_endian(UINT64_MAX, 8);

  EXPECT_EQ(gguf_architecture(file_of({huge})), "");
  EXPECT_EQ(gguf_architecture(file_of({pair("a", 8, huge), kDeepseek})), "");
  EXPECT_EQ(gguf_architecture(file_of({pair("a", 9, little_endian(10, 4) + huge), kDeepseek})), "");
  EXPECT_EQ(gguf_architecture(file_of({pair("a", 9, little_endian(8, 4) + huge), kDeepseek})), "");
  EXPECT_EQ(gguf_architecture(file_of({pair("a", 77, "1234"), kDeepseek})), "");
  EXPECT_EQ(gguf_architecture("{\"not\": \"gguf\"}"), "");
}

TEST(Gguf, RefusalSaysWhatItIsAndWhatIsRead) {
  const TempDir dir;
  write_bytes(dir.file("m.gguf"), file_of({kDeepseek}));
  write_bytes(dir.file("cut.gguf"), "GGUF");

  const Status status = refuse_gguf(dir.file("m.gguf"));

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), testing::HasSubstr("with architecture \"deepseek2\""));
  EXPECT_THAT(status.message(),
              testing::HasSubstr("\nhint: fathom reads checkpoints of Hugging Face"));
  EXPECT_THAT(refuse_gguf(dir.file("cut.gguf")).message(),
              testing::HasSubstr("whose architecture is not to be found"));
}

}  // namespace
}  // namespace fathom
