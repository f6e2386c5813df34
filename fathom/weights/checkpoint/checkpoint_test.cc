#include "fathom/weights/checkpoint/checkpoint.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/weights/export/journal.h"
#include "tests/support/temp_dir.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

constexpr const char* kShard1 = "model-00001-of-00002.safetensors";
constexpr const char* kShard2 = "model-00002-of-00002.safetensors";

std::string index_text(const std::vector<std::pair<std::string, std::string>>& weight_map) {
  std::string text = R"({"metadata":{"total_size":0},"weight_map":{)";
  for (const auto& [tensor, shard] : weight_map) {
    if (text.back() != '{') text.push_back(',');
    text += str_cat("\"", tensor, "\":\"", shard, "\"");
  }
  return text + "}}";
}

// Two shards with an index: a and b in the first, c in the second.
void write_sharded(const TempDir& dir) {
  write_safetensors(dir.file(kShard1),
                    {{"a", Format::kU8, {4}, 'a'}, {"b", Format::kBf16, {2, 3}, 'b'}});
  write_safetensors(dir.file(kShard2), {{"c", Format::kF32, {}, 'c'}});
  write_bytes(dir.file(kIndexName), index_text({{"a", kShard1}, {"b", kShard1}, {"c", kShard2}}));
}

std::string open_error(const TempDir& dir, const CheckpointOptions& options = {}) {
  const auto checkpoint = Checkpoint::open(dir.path(), options);
  return checkpoint.ok() ? "opened" : checkpoint.status().message();
}

StatusCode open_code(const TempDir& dir) {
  const auto checkpoint = Checkpoint::open(dir.path());
  return checkpoint.ok() ? StatusCode::kOk : checkpoint.status().code();
}

std::string read_all(const Checkpoint& checkpoint, std::string_view name) {
  const TensorRef* tensor = checkpoint.find(name);
  if (tensor == nullptr) return "absent";
  std::string data(static_cast<size_t>(tensor->entry.bytes()), '?');
  const Status status = checkpoint.read(*tensor, std::as_writable_bytes(std::span(data)));
  return status.ok() ? data : status.message();
}

TEST(Checkpoint, SingleFileNeedsNoIndex) {
  const TempDir dir;
  write_safetensors(dir.file("model.safetensors"), {{"a", Format::kU8, {4}, 'a'}});

  const auto checkpoint = Checkpoint::open(dir.path());

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(read_all(*checkpoint, "a"), "aaaa");
  EXPECT_EQ(checkpoint->total_bytes(), 4);
  EXPECT_TRUE(checkpoint->warnings().empty());
}

TEST(Checkpoint, ShardsAreOneMap) {
  const TempDir dir;
  write_sharded(dir);

  const auto checkpoint = Checkpoint::open(dir.path());

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(read_all(*checkpoint, "a"), "aaaa");
  EXPECT_EQ(read_all(*checkpoint, "b"), "bbbbbbbbbbbb");
  EXPECT_EQ(read_all(*checkpoint, "c"), "cccc");
  EXPECT_EQ(checkpoint->total_bytes(), 20);
  ASSERT_EQ(checkpoint->file_names().size(), 2u);
  EXPECT_EQ(checkpoint->file_names()[1], kShard2);
  EXPECT_EQ(checkpoint->file_bytes(1),
            static_cast<int64_t>(std::filesystem::file_size(dir.file(kShard2))));
  std::vector<std::string> order;
  for (const TensorRef& tensor : checkpoint->tensors())
    order.push_back(tensor.entry.name);
  EXPECT_EQ(order, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(checkpoint->find("c")->file, 1);
  EXPECT_EQ(checkpoint->describe(*checkpoint->find("c")),
            str_cat(dir.file(kShard2), ": tensor \"c\""));
}

TEST(Checkpoint, TellsWhenAFileWasLastChanged) {
  const TempDir dir;
  write_sharded(dir);
  const timespec times[2] = {{.tv_sec = 1, .tv_nsec = 2}, {.tv_sec = -3, .tv_nsec = 123'456'789}};
  ASSERT_EQ(utimensat(AT_FDCWD, dir.file(kShard2).c_str(), times, 0), 0);
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());

  const FileTime changed = checkpoint->last_change(1).value();

  EXPECT_EQ(changed.seconds, -3);
  EXPECT_EQ(changed.nanoseconds, 123'456'789);
}

TEST(Checkpoint, AbsentTensorIsNotFoundByName) {
  const TempDir dir;
  write_sharded(dir);
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());

  EXPECT_EQ(checkpoint->find("d"), nullptr);
  EXPECT_EQ(checkpoint->get("d").status().message(), dir.path() + ": has no tensor \"d\"");
  EXPECT_EQ(checkpoint->get("d").status().code(), StatusCode::kNotFound);
}

TEST(Checkpoint, FoundTensorsSurviveAMove) {
  const TempDir dir;
  write_sharded(dir);
  auto first = Checkpoint::open(dir.path());
  ASSERT_TRUE(first.ok());
  const TensorRef* tensor = first->find("b");

  const Checkpoint second = std::move(*first);

  EXPECT_EQ(second.find("b"), tensor);
  EXPECT_EQ(read_all(second, "b"), "bbbbbbbbbbbb");
}

TEST(Checkpoint, PartsOfATensorAreReadFromTheirOffset) {
  const TempDir dir;
  std::string data;
  for (int i = 0; i < 64; ++i)
    data.push_back(static_cast<char>(' ' + i));
  write_bytes(dir.file("model.safetensors"),
              format_safetensors_header(
                  {{"pad", Format::kU8, {5}, 0, 0}, {"t", Format::kU8, {64}, 0, 0}}, {}) +
                  "xxxxx" + data);
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const TensorRef& tensor = *checkpoint->find("t");

  for (const auto& [offset, size] :
       {std::pair{0, 64}, {0, 0}, {64, 0}, {1, 1}, {17, 31}, {63, 1}}) {
    std::string part(static_cast<size_t>(size), '?');
    ASSERT_TRUE(checkpoint->read_at(tensor, offset, std::as_writable_bytes(std::span(part))).ok());
    EXPECT_EQ(part, data.substr(static_cast<size_t>(offset), static_cast<size_t>(size)));
  }
}

TEST(Checkpoint, ReadBeyondATensorIsABrokenInvariant) {
  const TempDir dir;
  write_sharded(dir);
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  std::vector<std::byte> dst(5);

  EXPECT_DEATH((void)checkpoint->read_at(*checkpoint->find("a"), 0, dst),
               "a read beyond its tensor");
  EXPECT_DEATH((void)checkpoint->read_at(*checkpoint->find("a"), 5, {}),
               "a read beyond its tensor");
  EXPECT_DEATH((void)checkpoint->read(*checkpoint->find("b"), dst), "another size than its tensor");
}

TEST(Checkpoint, FileThatShrinksAfterOpeningIsNamedWithItsTensor) {
  const TempDir dir;
  write_sharded(dir);
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  const TensorRef& tensor = *checkpoint->find("c");
  ASSERT_EQ(truncate(dir.file(kShard2).c_str(), tensor.entry.begin + 1), 0);

  EXPECT_EQ(read_all(*checkpoint, "c"),
            str_cat("tensor \"c\": ", dir.file(kShard2), ": ends at byte ", tensor.entry.begin + 1,
                    ", expected 4 bytes at offset ", tensor.entry.begin,
                    "\nhint: it was cut while it was read; try again when nothing writes it"));
}

TEST(Checkpoint, ShardNamedByTheIndexMustExist) {
  const TempDir dir;
  write_sharded(dir);
  ASSERT_EQ(unlink(dir.file(kShard2).c_str()), 0);

  EXPECT_EQ(
      open_error(dir),
      str_cat(
          dir.path(), ": model.safetensors.index.json names ", kShard2,
          ", which is not there\nhint: the download or copy is incomplete; fetch what is missing"));
  EXPECT_EQ(open_code(dir), StatusCode::kCorrupt);
}

TEST(Checkpoint, IndexMayNotLeaveTheDirectory) {
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors",
                           "..safetensors", "x..safetensors", ".x.safetensors", "x.bin",
                           "x.safetensors.bin", "", "x\\u0000.safetensors", "a b.safetensors"}) {
    const TempDir dir;
    write_sharded(dir);
    write_bytes(dir.file(kIndexName), index_text({{"a", name}}));
    EXPECT_EQ(open_code(dir), StatusCode::kCorrupt) << name;
    EXPECT_NE(open_error(dir).find("expected a plain file name that ends with .safetensors"),
              std::string::npos)
        << open_error(dir);
  }
  const TempDir dir;
  write_bytes(dir.file(kIndexName), index_text({{"a", "../x.safetensors"}}));
  EXPECT_EQ(open_error(dir), str_cat(dir.file(kIndexName),
                                     ": shard of tensor \"a\" is \"../x.safetensors\", expected "
                                     "a plain file name that ends with .safetensors"));
}

TEST(Checkpoint, MalformedIndexIsCorrupt) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", ": weight_map is absent, expected an object"},
      {R"({"weight_map":[]})", ": weight_map is an array, expected an object"},
      {R"({"weight_map":{}})",
       ": weight_map is empty, expected the shard of each tensor; the file is not that of this "
       "model"},
      {R"({"weight_map":{"a":3}})", ": shard of tensor \"a\" is an integer, expected a string"}};
  for (const auto& [text, message] : cases) {
    const TempDir dir;
    write_bytes(dir.file(kIndexName), text);
    EXPECT_EQ(open_error(dir), dir.file(kIndexName) + message);
  }
  const TempDir dir;
  write_bytes(dir.file(kIndexName), R"({"weight_map":{"a":"x","a":"y"}})");
  EXPECT_EQ(open_code(dir), StatusCode::kCorrupt);
  write_bytes(dir.file(kIndexName), R"({"weight_map":{"a":"x.safetens)");
  EXPECT_EQ(open_code(dir), StatusCode::kCorrupt);
}

TEST(Checkpoint, ShardTheIndexForgotIsReadWithAWarning) {
  const TempDir dir;
  write_sharded(dir);
  write_safetensors(dir.file("model-mtp.safetensors"), {{"d", Format::kU8, {2}, 'd'}});

  const auto checkpoint = Checkpoint::open(dir.path());

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(read_all(*checkpoint, "d"), "dd");
  ASSERT_EQ(checkpoint->warnings().size(), 1u);
  EXPECT_EQ(checkpoint->warnings()[0],
            dir.path() +
                ": model.safetensors.index.json does not name model-mtp.safetensors; its "
                "tensors are used all the same");
}

TEST(Checkpoint, OtherSafetensorsBesideTheShardsAreLeftAlone) {
  const TempDir dir;
  write_sharded(dir);
  write_bytes(dir.file("golden.safetensors"), "not even a header");

  const auto checkpoint = Checkpoint::open(dir.path());

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->file_names().size(), 2u);
  EXPECT_TRUE(checkpoint->warnings().empty());
}

TEST(Checkpoint, StaleIndexIsAWarningBecauseHeadersAreTheTruth) {
  const TempDir dir;
  write_sharded(dir);
  write_bytes(dir.file(kIndexName),
              index_text({{"a", kShard2}, {"b", kShard1}, {"gone", kShard1}}));

  const auto checkpoint = Checkpoint::open(dir.path());

  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(read_all(*checkpoint, "a"), "aaaa");
  ASSERT_EQ(checkpoint->warnings().size(), 2u);
  EXPECT_EQ(checkpoint->warnings()[0],
            dir.path() +
                ": model.safetensors.index.json names 1 tensors that no shard holds, such "
                "as \"gone\"");
  EXPECT_EQ(checkpoint->warnings()[1],
            dir.path() +
                ": model.safetensors.index.json places 1 tensors in another shard than the "
                "one that holds them, such as \"a\"");
}

TEST(Checkpoint, TensorInTwoShardsIsRefusedNamingBoth) {
  const TempDir dir;
  write_sharded(dir);
  write_safetensors(dir.file(kShard2),
                    {{"c", Format::kF32, {}, 'c'}, {"a", Format::kU8, {4}, 'A'}});

  EXPECT_EQ(open_error(dir),
            str_cat(dir.path(), ": tensor \"a\" is both in ", kShard1, " and in ", kShard2));
}

TEST(Checkpoint, ShardsWithoutAnIndexAreRefused) {
  const TempDir dir;
  write_sharded(dir);
  ASSERT_EQ(unlink(dir.file(kIndexName).c_str()), 0);
  EXPECT_EQ(open_error(dir), dir.path() +
                                 ": holds 2 shards and no model.safetensors.index.json, so "
                                 "it cannot be told whether they are all there");

  write_safetensors(dir.file("model.safetensors"), {{"z", Format::kU8, {1}, 'z'}});
  EXPECT_EQ(open_code(dir), StatusCode::kCorrupt);
}

TEST(Checkpoint, PickleFilesAreRefusedByName) {
  for (const char* name : {"pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"}) {
    const TempDir dir;
    write_bytes(dir.file("config.json"), "{}");
    write_bytes(dir.file(name), "");
    EXPECT_EQ(open_code(dir), StatusCode::kUnsupported);
    EXPECT_EQ(open_error(dir), str_cat(dir.path(), ": ", name,
                                       " is a pickle file, which can run code and is never "
                                       "opened\nhint: convert the checkpoint to safetensors"));
  }
}

TEST(Checkpoint, PickleFileBesideSafetensorsIsLeftAlone) {
  const TempDir dir;
  write_sharded(dir);
  write_bytes(dir.file("training_args.bin"), "");
  EXPECT_EQ(open_error(dir), "opened");
}

TEST(Checkpoint, DirectoryWithoutWeightsIsNotFound) {
  const TempDir dir;
  EXPECT_EQ(open_error(dir),
            dir.path() + ": holds neither model.safetensors nor model.safetensors.index.json");
  EXPECT_EQ(open_code(dir), StatusCode::kNotFound);
  EXPECT_EQ(Checkpoint::open(dir.file("none")).status().code(), StatusCode::kNotFound);
}

TEST(Checkpoint, UnfinishedWriteIsRefused) {
  const TempDir dir;
  write_sharded(dir);
  write_bytes(dir.file("config.json.partial"), "");
  EXPECT_EQ(open_error(dir),
            dir.path() +
                ": holds config.json.partial, which an unfinished write left\nhint: run that "
                "command again to resume it, or delete the file");
  EXPECT_EQ(open_code(dir), StatusCode::kCorrupt);
}

TEST(Checkpoint, JournalWithoutAnEndIsRefusedAndOneOfOtherFiles) {
  const TempDir dir;
  write_sharded(dir);
  const std::string journal = journal_first_line("s", "o", std::string(64, '0')) + "\n";
  write_bytes(dir.file(kJournalName), journal);
  EXPECT_EQ(open_error(dir),
            dir.path() +
                ": fathom-journal.jsonl records 0 files and no end, so the write did not "
                "finish\nhint: run that command again to resume it");

  write_bytes(dir.file(kJournalName), journal + journal_last_line(0));
  EXPECT_EQ(open_code(dir), StatusCode::kCorrupt) << "a last line without its newline is torn";

  write_bytes(dir.file(kJournalName), journal + journal_last_line(0) + "\n");
  EXPECT_THAT(open_error(dir), testing::HasSubstr("holds model-00001-of-00002.safetensors, which "
                                                  "fathom-journal.jsonl does not record"));
}

TEST(Checkpoint, NumberOfShardsIsLimited) {
  const TempDir dir;
  write_sharded(dir);
  EXPECT_EQ(open_error(dir, {.max_shards = 2}), "opened");
  EXPECT_EQ(open_error(dir, {.max_shards = 1}),
            dir.path() + ": holds 2 shards, expected at most 1");
}

TEST(Checkpoint, LinksToShardsOpenUnlessRefused) {
  const TempDir dir;
  const TempDir blobs;
  write_safetensors(blobs.file("blob"), {{"a", Format::kU8, {4}, 'a'}});
  ASSERT_EQ(symlink(blobs.file("blob").c_str(), dir.file("model.safetensors").c_str()), 0);

  EXPECT_EQ(open_error(dir), "opened");
  EXPECT_EQ(open_error(dir, {.symlinks = Symlinks::kRefuse}),
            dir.file("model.safetensors") +
                ": is a symbolic link, expected a regular file (links are refused here)\nhint: put "
                "the file itself in its place");
}

TEST(Checkpoint, ShardThatIsADirectoryIsAnError) {
  const TempDir dir;
  ASSERT_EQ(mkdir(dir.file("model.safetensors").c_str(), 0700), 0);
  EXPECT_EQ(open_error(dir), dir.file("model.safetensors") +
                                 ": is a directory, expected a regular file\nhint: name a file in "
                                 "it, or put the file in its place");
}

TEST(Checkpoint, SingleFilesOpenAlone) {
  const TempDir dir;
  write_safetensors(dir.file("golden.safetensors"), {{"a", Format::kI64, {1}, 'a'}});
  const auto checkpoint = Checkpoint::open_file(dir.file("golden.safetensors"));
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(read_all(*checkpoint, "a"), "aaaaaaaa");
  EXPECT_EQ(checkpoint->directory(), dir.path());
}

// Cut at every byte of the header and at random places of the data: always an error that names the
// shard, never a checkpoint.
TEST(Checkpoint, EveryTruncationOfAShardIsAnError) {
  constexpr uint64_t kSeed = 7;
  std::mt19937_64 random(kSeed);
  const std::string whole = safetensors_bytes({{"a", Format::kBf16, {32, 16}, 'a'},
                                               {"b", Format::kE4m3, {64, 16}, 'b'},
                                               {"c", Format::kF32, {}, 'c'}});
  std::vector<size_t> cuts;
  for (size_t cut = 0; cut < 400; ++cut)
    cuts.push_back(cut);
  for (int i = 0; i < 1000; ++i)
    cuts.push_back(random() % whole.size());
  const TempDir dir;
  write_bytes(dir.file("model.safetensors"), whole);
  ASSERT_EQ(open_error(dir), "opened");

  // From long to short, so that each cut is made from the one before.
  std::sort(cuts.rbegin(), cuts.rend());
  for (const size_t cut : cuts) {
    ASSERT_EQ(truncate(dir.file("model.safetensors").c_str(), static_cast<off_t>(cut)), 0);
    const auto checkpoint = Checkpoint::open(dir.path());
    ASSERT_FALSE(checkpoint.ok()) << "cut at " << cut << ", seed " << kSeed;
    EXPECT_EQ(checkpoint.status().code(), StatusCode::kCorrupt) << "cut at " << cut;
    EXPECT_EQ(checkpoint.status().message().find(dir.file("model.safetensors") + ": "), 0u)
        << checkpoint.status().message();
  }
}

}  // namespace
}  // namespace fathom
