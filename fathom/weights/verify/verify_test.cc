#include "fathom/weights/verify/verify.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include "fathom/os/file.h"
#include "fathom/os/sha256.h"
#include "fathom/weights/export/checkpoint_writer.h"
#include "tests/support/test_checkpoint.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Hash = VerifiedFile::Hash;
using testing::ElementsAre;
using testing::HasSubstr;

std::string digest_of(const std::string& path) {
  return to_hex(sha256(read_file(path, 1 << 20).value()));
}

// Two shards of 64 bytes each, config.json and a journal, as the writer makes them.
void write_journalled(const TempDir& dir) {
  TensorPlan plan;
  for (const char* name : {"a.bias", "b.bias"})
    plan.push_back({.name = name, .dtype = Format::kF32, .shape = {16}});
  CheckpointWriterOptions options;
  options.max_shard_bytes = 64;
  options.side_files = {{"config.json", "{}"}};
  const std::vector<std::byte> zeros(64);
  const auto written = write_checkpoint(
      dir.path(), plan, options, [&](size_t, TensorSink& sink) { return sink.append(zeros); });
  ASSERT_TRUE(written.ok()) << written.status().message();
}

void change_last_byte(const std::string& path, char byte) {
  std::string text = read_file(path, 1 << 20).value();
  text.back() = byte;
  write_bytes(path, text);
}

std::vector<std::string> faults_of(const Checkpoint& checkpoint, int threads = 1) {
  ThreadPool pool(threads, PinThreads::kNo);
  return verify_files(checkpoint.directory(), &checkpoint, pool).faults;
}

TEST(RecordedFiles, JournalsLinksAndDownloadsAreRead) {
  const TempDir dir;
  write_journalled(dir);
  const std::string blob(64, 'a');
  fs::create_directories(dir.file("blobs"));
  write_bytes(dir.file("blobs/") + blob, "x");
  fs::create_symlink("blobs/" + blob, dir.file("tokenizer.json"));
  fs::create_symlink("blobs/0123", dir.file("small.json"));  // of git, which is no SHA-256
  fs::create_directories(dir.file(".cache/huggingface/download"));
  write_bytes(dir.file("generation_config.json"), "{}");
  write_bytes(dir.file(".cache/huggingface/download/generation_config.json.metadata"),
              "0123\n" + std::string(64, 'b') + "\n1700000000.0\n");

  const auto files = recorded_files(dir.path());

  ASSERT_TRUE(files.ok()) << files.status().message();
  std::vector<std::string> found;
  for (const RecordedFile& file : *files)
    found.push_back(str_cat(file.file.name, " by ", file.recorded_by));
  EXPECT_THAT(found, ElementsAre("config.json by fathom-journal.jsonl",
                                 "generation_config.json by the download",
                                 "model-00001-of-00002.safetensors by fathom-journal.jsonl",
                                 "model-00002-of-00002.safetensors by fathom-journal.jsonl",
                                 "model.safetensors.index.json by fathom-journal.jsonl",
                                 "tokenizer.json by the Hugging Face cache"));
  EXPECT_EQ((*files)[5].file.sha256, blob);
}

TEST(JournalledShards, ThoseOfTheJournalOpen) {
  const TempDir dir;
  write_journalled(dir);

  const auto checkpoint = Checkpoint::open(dir.path());

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_TRUE(check_journalled_bytes(*checkpoint, 1 << 20).ok());
}

TEST(JournalledShards, ShardsOfAnotherWriteAreRefused) {
  const std::pair<void (*)(const TempDir&), const char*> changes[] = {
      {[](const TempDir& dir) {
         write_safetensors(dir.file("model-00002-of-00002.safetensors"),
                           {{"b.bias", Format::kF32, {8}, 'x'}});
       },
       "model-00002-of-00002.safetensors is 136 bytes long, but fathom-journal.jsonl records 168"},
      {[](const TempDir& dir) {
         write_safetensors(dir.file("model-more.safetensors"), {{"c", Format::kU8, {1}, 'x'}});
       },
       "holds model-more.safetensors, which fathom-journal.jsonl does not record"},
      {[](const TempDir& dir) {
         write_safetensors(dir.file("model-00002-of-00002.safetensors"),
                           {{"c.bias", Format::kF32, {16}, 'x'}});
       },
       "the headers of its shards are not those that fathom-journal.jsonl records"},
  };
  for (const auto& [change, says] : changes) {
    const TempDir dir;
    write_journalled(dir);
    change(dir);

    const Status status = Checkpoint::open(dir.path()).status();

    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr(says));
  }
}

TEST(JournalledShards, BytesAreHashedUpToALimit) {
  const TempDir dir;
  write_journalled(dir);
  change_last_byte(dir.file("model-00002-of-00002.safetensors"), '\x01');
  const Checkpoint checkpoint = Checkpoint::open(dir.path()).value();

  const Status status = check_journalled_bytes(checkpoint, 128);

  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(),
              HasSubstr("model-00002-of-00002.safetensors has another SHA-256 than"));
  EXPECT_TRUE(check_journalled_bytes(checkpoint, 127).ok()) << "128 bytes of tensors";
}

TEST(VerifyFiles, ReportNamesEveryFileOnceInOrder) {
  const TempDir dir;
  write_journalled(dir);
  write_bytes(dir.file("config.json"), "{ }");
  const Checkpoint checkpoint = Checkpoint::open(dir.path()).value();
  ThreadPool pool(3, PinThreads::kNo);
  int64_t last = 0;
  int64_t all = 0;

  const VerifyReport report =
      verify_files(dir.path(), &checkpoint, pool, [&](int64_t done, int64_t total) {
        EXPECT_GT(done, last);
        last = done;
        all = total;
      });

  ASSERT_EQ(report.files.size(), 4u);
  EXPECT_EQ(report.files[0].name, "config.json");
  EXPECT_EQ(report.files[0].hash, Hash::kDiffers);
  EXPECT_EQ(report.files[1].hash, Hash::kMatches);
  EXPECT_EQ(report.files[3].name, "model.safetensors.index.json");
  EXPECT_EQ(report.tensors, 2);
  EXPECT_EQ(last, all);
  EXPECT_EQ(report.bytes, all);
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_THAT(report.faults[0],
              HasSubstr("config.json: is not the file that fathom-journal.jsonl records: its "
                        "SHA-256 is " +
                        digest_of(dir.file("config.json"))));
}

TEST(VerifyFiles, WithoutACheckpointRecordedFilesAreHashed) {
  const TempDir dir;
  write_journalled(dir);
  fs::resize_file(dir.file("model-00001-of-00002.safetensors"), 20);
  ThreadPool pool(1, PinThreads::kNo);

  const VerifyReport report = verify_files(dir.path(), nullptr, pool);

  EXPECT_EQ(report.files.size(), 4u);
  EXPECT_EQ(report.tensors, 0);
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_THAT(report.faults[0], HasSubstr("model-00001-of-00002.safetensors"));
}

TEST(VerifyFiles, EveryFloatOfEveryTypeIsLookedAt) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  TestCheckpoint weights;
  weights.vector("f32.bias", {1, 2, kInfinity}, Format::kF32);
  weights.vector("bf16.bias", {-kInfinity}, Format::kBf16);
  weights.codes("f16.bias", Format::kF16, {2}, {0x00, 0x3C, 0x00, 0x7E});
  weights.codes("e4m3", Format::kE4m3, {3}, {0x7E, 0xFF, 0x7F});
  weights.codes("u8", Format::kU8, {2}, {0xFF, 0x7F});
  weights.codes("i64", Format::kI64, {1}, std::vector<uint8_t>(8, 0xFF));
  weights.vector("sound.bias", {3.4e38f, -3.4e38f, 0}, Format::kF32);

  EXPECT_THAT(faults_of(weights.open()), ElementsAre(HasSubstr("\"f32.bias\": element 2 at byte "),
                                                     HasSubstr("\"bf16.bias\": element 0 at byte "),
                                                     HasSubstr("\"f16.bias\": element 1 at byte "),
                                                     HasSubstr("\"e4m3\": element 1 at byte ")));
}

TEST(VerifyFiles, ScalesAreHeldToTheirSigns) {
  TestCheckpoint weights;
  weights.matrix("a.weight", 2, 32, Format::kNvfp4);
  weights.tensor("a.weight_scale").bytes[3] = std::byte{0xB8};  // -1
  weights.matrix("b.weight", 2, 32, Format::kNvfp4);
  weights.tensor("b.weight_scale_2").bytes.assign(4, std::byte{0});
  weights.matrix("c.weight", 2, 32, Format::kMxfp4);
  weights.tensor("c.weight_scale").bytes[1] = std::byte{0xFF};  // NaN
  weights.matrix("d.weight", 2, 32, Format::kNvfp4);

  EXPECT_THAT(faults_of(weights.open(), 2),
              ElementsAre(HasSubstr("\"a.weight_scale\": scale 3 at byte "),
                          HasSubstr("\"b.weight_scale_2\""),
                          HasSubstr("\"c.weight_scale\": scale 1 at byte ")));
}

TEST(VerifyFiles, WeightWithoutItsScalesIsAFault) {
  TestCheckpoint weights;
  weights.codes("a.weight", Format::kE4m3, {2, 16}, std::vector<uint8_t>(32, 0x38));

  EXPECT_THAT(faults_of(weights.open()), ElementsAre(HasSubstr("\"a.weight\"")));
}

}  // namespace
}  // namespace fathom
