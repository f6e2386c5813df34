#include "fathom/serve/access.h"

#include <fstream>
#include <gtest/gtest.h>

#include "fathom/os/sha256.h"
#include "tests/support/temp_dir.h"

namespace fathom::serve {
namespace {

HttpRequest with(std::string name, std::string value) {
  HttpRequest r;
  r.headers = {{std::move(name), std::move(value)}};
  return r;
}

TEST(Access, WithoutKeysEverybodyMay) {
  const Access access;
  EXPECT_TRUE(access.open());
  EXPECT_EQ(access.check({}), std::string());
}

TEST(Access, KeysOfAllSourcesCount) {
  const TempDir dir;
  std::ofstream(dir.file("keys")) << "# ours\n\n  alpha \r\nbeta\n";
  const Result<Access> access =
      Access::load({.file = dir.file("keys"), .argument = "gamma", .environment = "delta"});
  ASSERT_TRUE(access.ok()) << access.status().message();
  EXPECT_FALSE(access->open());
  for (const char* key : {"alpha", "beta", "gamma", "delta"}) {
    const auto digest = to_hex(sha256(std::string_view(key)));
    EXPECT_EQ(access->check(with("authorization", std::string("Bearer ") + key)), digest);
    EXPECT_EQ(access->check(with("AUTHORIZATION", std::string("bearer ") + key)), digest);
    EXPECT_EQ(access->check(with("X-Api-Key", key)), digest);
  }
  for (const char* wrong : {"", "alph", "alphaa", "# ours", "ALPHA"}) {
    EXPECT_FALSE(access->check(with("x-api-key", wrong)).has_value()) << wrong;
    EXPECT_FALSE(access->check(with("authorization", std::string("Basic ") + wrong)).has_value());
  }
  EXPECT_FALSE(access->check({}).has_value());
}

TEST(Access, NoPartOfADigestIsEnough) {
  const Result<Access> access = Access::load({.file = {}, .argument = "a", .environment = "b"});
  ASSERT_TRUE(access.ok());
  for (int i = 0; i < 4000; ++i)
    EXPECT_FALSE(access->check(with("x-api-key", "guess-" + std::to_string(i))).has_value()) << i;
}

TEST(Access, RefusalsSayWhatToSend) {
  const Result<Access> access = Access::load({.file = {}, .argument = {}, .environment = "k"});
  ASSERT_TRUE(access.ok());
  EXPECT_EQ(access->refusal({}).status, 401);
  EXPECT_NE(access->refusal({}).message.find("Bearer"), std::string::npos);
  const ApiError wrong = access->refusal(with("x-api-key", "secret"));
  EXPECT_EQ(wrong.code, "invalid_api_key");
  EXPECT_EQ(wrong.message.find("secret"), std::string::npos);
}

TEST(Access, RefusesFilesWithoutAKey) {
  const TempDir dir;
  Result<Access> access =
      Access::load({.file = dir.file("none"), .argument = {}, .environment = {}});
  ASSERT_FALSE(access.ok());
  std::ofstream(dir.file("keys")) << "# nothing\n";
  access = Access::load({.file = dir.file("keys"), .argument = {}, .environment = {}});
  ASSERT_FALSE(access.ok());
  EXPECT_NE(access.status().message().find("holds no key"), std::string::npos);
  access = Access::load({.file = {}, .argument = "two words", .environment = {}});
  ASSERT_FALSE(access.ok());
  EXPECT_NE(access.status().message().find("--api-key"), std::string::npos);
  EXPECT_EQ(access.status().message().find("two words"), std::string::npos);
}

}  // namespace
}  // namespace fathom::serve
