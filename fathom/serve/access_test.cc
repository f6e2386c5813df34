#include "fathom/serve/access.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace fathom::serve {
namespace {

using testing::HasSubstr;
using testing::Not;

HttpRequest request(std::string path, std::vector<HttpHeader> headers = {}) {
  HttpRequest r;
  r.method = "GET";
  r.path = std::move(path);
  r.headers = std::move(headers);
  return r;
}

ApiKeys two_keys() {
  ApiKeys keys;
  EXPECT_TRUE(keys.add("sk-one", "test").ok());
  EXPECT_TRUE(keys.add("sk-two", "test").ok());
  return keys;
}

int status(const HttpRequest& r, const ApiKeys& keys, const AccessRules& rules = {}) {
  const Access access = check_access(r, keys, rules);
  return access.error ? access.error->status : 200;
}

TEST(Access, WithoutKeysEverythingIsOpen) {
  const Access access = check_access(request("/v1/models"), {}, {});

  EXPECT_FALSE(access.error.has_value());
  EXPECT_FALSE(access.key.has_value());
}

TEST(Access, TakesEachKeyInEitherHeader) {
  const ApiKeys keys = two_keys();
  for (const std::string key : {"sk-one", "sk-two"}) {
    for (const HttpHeader& header :
         {HttpHeader{"authorization", "Bearer " + key},
          HttpHeader{"Authorization", "bearer  " + key}, HttpHeader{"X-Api-Key", key}}) {
      const Access access = check_access(request("/v1/models", {header}), keys, {});
      EXPECT_FALSE(access.error.has_value()) << header.second;
      EXPECT_EQ(access.key, sha256(key)) << header.second;
    }
  }
}

TEST(Access, RefusesEverythingElse) {
  const ApiKeys keys = two_keys();
  EXPECT_EQ(status(request("/v1/models"), keys), 401);
  for (const std::string value : {"Bearer sk-on", "Bearer sk-one2", "Bearer SK-ONE", "Bearer ",
                                  "Bearer", "Basic sk-one", "sk-one", "Bearer sk-one sk-one", ""})
    EXPECT_EQ(status(request("/v1/models", {{"Authorization", value}}), keys), 401) << value;
  EXPECT_EQ(status(request("/v1/models", {{"x-api-key", "sk-three"}}), keys), 401);

  const auto error = *check_access(request("/x", {{"x-api-key", "my-secret"}}), keys, {}).error;
  EXPECT_EQ(error.code, "invalid_api_key");
  EXPECT_THAT(error.message, Not(HasSubstr("my-secret")));
}

TEST(Access, TheDoorsOfHealthAreOpen) {
  const ApiKeys keys = two_keys();
  for (const std::string path :
       {"/health", "/health/live", "/live", "/health/ready", "/ready", "/ping", "/"})
    EXPECT_EQ(status(request(path), keys), 200) << path;
  for (const std::string path : {"/healthy", "/health/", "/health/live/x", "/metrics", "/version",
                                 "/server_info", "/load", "/nowhere", "", "//"})
    EXPECT_EQ(status(request(path), keys), 401) << path;
  EXPECT_EQ(status(request("/metrics"), keys, {.metrics_open = true}), 200);
  HttpRequest post_page = request("/");
  post_page.method = "POST";
  EXPECT_EQ(status(post_page, keys), 401);
}

TEST(Access, AnOpenDoorTakesAWrongKey) {
  const Access access = check_access(request("/health", {{"x-api-key", "wrong"}}), two_keys(), {});

  EXPECT_FALSE(access.error.has_value());
  EXPECT_FALSE(access.key.has_value());
}

TEST(ApiKeys, ReadsLines) {
  ApiKeys keys;

  ASSERT_TRUE(keys.add_lines("# mine\n\n  sk-a \t\r\nsk-b\nsk-a", "keys.txt").ok());

  EXPECT_EQ(keys.size(), 2u);
  EXPECT_TRUE(keys.find("sk-a").has_value());
  EXPECT_TRUE(keys.find("sk-b").has_value());
  EXPECT_FALSE(keys.find("# mine").has_value());
  EXPECT_FALSE(keys.find("").has_value());
}

TEST(ApiKeys, RefusesWhatIsNoKeyWithoutSayingIt) {
  ApiKeys keys;
  EXPECT_THAT(keys.add("", "--api-key").message(), HasSubstr("--api-key"));
  EXPECT_TRUE(keys.add(std::string(512, 'k'), "x").ok());
  EXPECT_THAT(keys.add(std::string(513, 'k'), "x").message(), HasSubstr("513 bytes"));
  const Status spaced = keys.add_lines("sk-a\nsecret word\n", "keys.txt");
  EXPECT_THAT(spaced.message(), HasSubstr("keys.txt line 2"));
  EXPECT_THAT(spaced.message(), Not(HasSubstr("secret")));
  EXPECT_FALSE(keys.add("k\x80", "x").ok());
  EXPECT_THAT(keys.add_lines("# none\n", "keys.txt").message(), HasSubstr("no API key"));
}

TEST(ApiKeys, WarnsOfAFileThatOthersRead) {
  const TempDir dir;
  const std::string path = dir.file("keys");
  std::ofstream(path) << "sk-a\n";
  using std::filesystem::perms;
  ApiKeys keys;

  std::filesystem::permissions(path, perms::owner_read | perms::owner_write);
  const auto quiet = keys.add_file(path);
  ASSERT_TRUE(quiet.ok());
  EXPECT_EQ(*quiet, "");

  std::filesystem::permissions(path, perms::owner_read | perms::group_read);
  const auto warned = keys.add_file(path);
  ASSERT_TRUE(warned.ok());
  EXPECT_THAT(*warned, HasSubstr("can be read by others"));
  EXPECT_TRUE(keys.find("sk-a").has_value());

  EXPECT_EQ(keys.add_file(dir.file("missing")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace fathom::serve
