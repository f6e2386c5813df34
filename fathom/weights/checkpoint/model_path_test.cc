#include "fathom/weights/checkpoint/model_path.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "fathom/base/str_cat.h"
#include "tests/support/temp_dir.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

// A cache with deepseek-ai/DeepSeek-V3: main, a tag and a pull request name the same commit.
void make_cache(const TempDir& dir) {
  const std::string model = dir.file("models--deepseek-ai--DeepSeek-V3");
  std::filesystem::create_directories(model + "/snapshots/" + kCommit);
  std::filesystem::create_directories(model + "/refs/refs/pr");
  write_bytes(model + "/refs/main", kCommit);
  write_bytes(model + "/refs/v1.0", str_cat(kCommit, "\n"));
  write_bytes(model + "/refs/refs/pr/7", kCommit);
  write_bytes(model + "/refs/lost", "ffff");
  write_bytes(model + "/refs/bad", "../../etc");
}

std::string resolve(std::string_view model, const std::vector<std::string>& roots) {
  const auto path = resolve_model(model, roots);
  return path.ok() ? *path : path.status().message();
}

TEST(ResolveModel, DirectoriesStandAsTheyAre) {
  const TempDir dir;
  EXPECT_EQ(resolve(dir.path(), {}), dir.path());
  EXPECT_EQ(resolve(".", {}), ".");
}

TEST(ResolveModel, HubNamesLeadToASnapshot) {
  const TempDir dir;
  make_cache(dir);
  const std::string folder = dir.file("models--deepseek-ai--DeepSeek-V3");
  const std::string snapshot = folder + "/snapshots/" + kCommit;

  EXPECT_EQ(resolve("deepseek-ai/DeepSeek-V3", {dir.path()}), snapshot);
  EXPECT_EQ(resolve("deepseek-ai/DeepSeek-V3@main", {dir.path()}), snapshot);
  EXPECT_EQ(resolve("deepseek-ai/DeepSeek-V3@v1.0", {dir.path()}), snapshot);
  EXPECT_EQ(resolve("deepseek-ai/DeepSeek-V3@refs/pr/7", {dir.path()}), snapshot);
  EXPECT_EQ(resolve(str_cat("deepseek-ai/DeepSeek-V3@", kCommit), {dir.path()}), snapshot);
}

TEST(ResolveModel, RootsAreTriedInTheirOrder) {
  const TempDir empty;
  const TempDir dir;
  make_cache(dir);
  EXPECT_EQ(resolve("deepseek-ai/DeepSeek-V3", {empty.path(), dir.path()}),
            dir.file("models--deepseek-ai--DeepSeek-V3/snapshots/") + kCommit);
}

TEST(ResolveModel, UnknownRevisionIsNamed) {
  const TempDir dir;
  make_cache(dir);
  const std::string folder = dir.file("models--deepseek-ai--DeepSeek-V3");
  EXPECT_EQ(resolve("deepseek-ai/DeepSeek-V3@dev", {dir.path()}),
            folder +
                ": has no revision dev\nhint: fathom does not download: hf download "
                "deepseek-ai/DeepSeek-V3 --revision dev");
  EXPECT_EQ(resolve("deepseek-ai/DeepSeek-V3@lost", {dir.path()}),
            folder +
                "/refs/lost: names commit ffff, whose snapshot is not there\nhint: fathom does not "
                "download: hf download deepseek-ai/DeepSeek-V3 --revision lost");
  EXPECT_EQ(resolve("deepseek-ai/DeepSeek-V3@bad", {dir.path()}),
            folder +
                "/refs/bad: holds \"../../etc\", expected a commit\nhint: fathom does not "
                "download: hf download deepseek-ai/DeepSeek-V3 --revision bad");
}

TEST(ResolveModel, MissingModelNamesThePlacesAndTheCommand) {
  const TempDir dir;
  EXPECT_EQ(
      resolve("deepseek-ai/DeepSeek-R1", {dir.path(), "/none"}),
      str_cat("model deepseek-ai/DeepSeek-R1 is no directory, and not in the cache (", dir.path(),
              ", /none)\nhint: fathom does not download: hf download "
              "deepseek-ai/DeepSeek-R1"));
  EXPECT_EQ(resolve("a/b@v2", {}),
            "model a/b@v2 is no directory, and not in the cache (none is known)\nhint: fathom "
            "does not download: hf download a/b --revision v2");
  EXPECT_EQ(resolve_model("a/b", {}).status().code(), StatusCode::kNotFound);
}

TEST(ResolveModel, NothingLeavesTheCache) {
  const TempDir dir;
  make_cache(dir);
  for (const char* model : {"deepseek-ai/..", "../DeepSeek-V3", "deepseek-ai/DeepSeek-V3@../main",
                            "deepseek-ai/DeepSeek-V3@/main", "deepseek-ai/DeepSeek-V3@", "a//b",
                            "a/b/c", "/none/at/all", "none", "", "a/b\nc", "a/", "/b"}) {
    EXPECT_EQ(resolve_model(model, std::vector<std::string>{dir.path()}).status().code(),
              StatusCode::kNotFound)
        << model;
  }
  EXPECT_EQ(resolve("none", {}),
            "model \"none\" is no directory, and not of the form ORG/NAME[@REV]\nhint: the path is "
            "taken from the current directory; `ls` shows what is there");
}

TEST(ResolveModel, FilesAreRefused) {
  const TempDir dir;
  write_bytes(dir.file("m.safetensors"), "");
  write_bytes(dir.file("m.gguf"), "GGUF");

  EXPECT_EQ(resolve(dir.file("m.safetensors"), {}),
            str_cat("model \"", dir.file("m.safetensors"),
                    "\" is a file, expected a directory in Hugging Face layout\nhint: name the "
                    "directory that holds config.json, tokenizer.json and the weights"));
  EXPECT_EQ(resolve_model(dir.file("m.safetensors"), {}).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(resolve_model(dir.file("m.gguf"), {}).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace fathom
