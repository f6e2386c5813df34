#include "fathom/weights/checkpoint/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/weights/export/journal.h"
#include "tests/support/temp_dir.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

using testing::HasSubstr;

TEST(ModelFolder, AnyFileOfAModelMakesOne) {
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors",
                           "model.safetensors.index.json", "model-00001-of-00002.safetensors"}) {
    const TempDir dir;
    write_bytes(dir.file(name), "");

    EXPECT_TRUE(check_model_folder(dir.path()).ok()) << name;
  }
}

TEST(ModelFolder, FoldersOfOtherThingsAreNoModels) {
  const TempDir dir;
  write_bytes(dir.file("README.md"), "");
  write_bytes(dir.file("adapter.safetensors"), "");

  const Status status = check_model_folder(dir.path());

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(": is no model: it holds neither config.json nor"));
}

TEST(ModelFolder, UnfinishedWritesAreRefusedBeforeWhatTheyLack) {
  const TempDir partial;
  write_bytes(partial.file("model.safetensors.partial"), "");
  const TempDir journalled;
  write_bytes(journalled.file(std::string(kJournalName)),
              journal_first_line("s", "o", std::string(64, '0')) + "\n");

  EXPECT_THAT(check_model_folder(partial.path()).message(),
              HasSubstr("holds model.safetensors.partial, which an unfinished write left"));
  EXPECT_THAT(check_model_folder(journalled.path()).message(),
              HasSubstr("records 0 files and no end, so the write did not finish"));
}

TEST(ModelFolder, WeightsOfOtherProgramsAreNamed) {
  const TempDir pickles;
  write_bytes(pickles.file("pytorch_model.bin"), "");
  const TempDir llama;
  write_bytes(llama.file("model.gguf"), "GGUF");

  EXPECT_EQ(check_model_folder(pickles.path()).code(), StatusCode::kUnsupported);
  EXPECT_THAT(check_model_folder(pickles.path()).message(), HasSubstr("is a pickle file"));
  EXPECT_EQ(check_model_folder(llama.path()).code(), StatusCode::kUnsupported);
  EXPECT_THAT(check_model_folder(llama.path()).message(), HasSubstr("model.gguf: is a GGUF file"));
}

TEST(ModelFolder, MissingFolderIsNotFound) {
  const TempDir dir;

  EXPECT_EQ(check_model_folder(dir.file("absent")).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace fathom
