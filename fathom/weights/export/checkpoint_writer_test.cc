#include "fathom/weights/export/checkpoint_writer.h"

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <signal.h>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/export/journal.h"
#include "tests/support/temp_dir.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

// Seven tensors in four shards of at most 4,096 bytes.
TensorPlan test_plan() {
  return {{"a.weight", Format::kU8, {32, 64}, 0, 0},
          {"a.weight_scale", Format::kE4m3, {32, 8}, 0, 0},
          {"a.weight_scale_2", Format::kF32, {}, 0, 0},
          {"b.weight", Format::kBf16, {40, 50}, 0, 0},
          {"c.weight", Format::kBf16, {30, 60}, 0, 0},
          {"d.weight", Format::kF32, {1000}, 0, 0},
          {"empty", Format::kF32, {0, 3}, 0, 0}};
}

constexpr size_t kNumShards = 4;

CheckpointWriterOptions test_options() {
  CheckpointWriterOptions options;
  options.max_shard_bytes = 4096;
  options.source_digest = "digest of the source";
  options.options = "--format nvfp4";
  options.side_files = {{"config.json", "{\"a\": 1}\n"}, {"tokenizer.json", "{}"}};
  return options;
}

std::string data_of(const TensorPlan& plan, size_t tensor) {
  std::string data;
  const auto bytes = *tensor_bytes(plan[tensor].dtype, plan[tensor].shape);
  for (int64_t i = 0; i < bytes; ++i) {
    data.push_back(static_cast<char>((i * 131 + static_cast<int64_t>(tensor) * 17) % 251));
  }
  return data;
}

// Produces data_of(), in uneven pieces.
TensorProducer test_source(const TensorPlan& plan) {
  return [&plan](size_t tensor, TensorSink& sink) -> Status {
    const std::string data = data_of(plan, tensor);
    for (size_t at = 0; at < data.size(); at += 700) {
      FATHOM_TRY(sink.append(
          std::as_bytes(std::span(data).subspan(at, std::min<size_t>(700, data.size() - at)))));
    }
    return {};
  };
}

Result<WriteReport> write(const std::string& directory,
                          const CheckpointWriterOptions& options = test_options()) {
  const TensorPlan plan = test_plan();
  return write_checkpoint(directory, plan, options, test_source(plan));
}

// Every file of a directory with its content.
std::map<std::string, std::string> files_in(const std::string& directory) {
  std::map<std::string, std::string> files;
  const std::vector<std::string> names = *list_directory(directory);
  for (const std::string& name : names) {
    const auto text = read_file(join_path(directory, name), 1 << 24);
    files[name] = text.ok() ? *text : text.status().message();
  }
  return files;
}

std::map<std::string, std::string> expected_files() {
  const TempDir dir;
  const auto report = write(dir.file("out"));
  FATHOM_CHECK(report.ok(), report.status().message());
  return files_in(dir.file("out"));
}

bool has_partial(const std::string& directory) {
  const auto names = *list_directory(directory);
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.ends_with(kPartialSuffix); });
}

// Runs body in a child process, which may kill itself; returns whether it was killed.
bool run_in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  FATHOM_CHECK(child >= 0, "fork");
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  FATHOM_CHECK(waitpid(child, &status, 0) == child, "waitpid");
  return WIFSIGNALED(status);
}

TEST(CheckpointWriter, WhatIsWrittenIsRead) {
  const TempDir dir;
  const auto report = write(dir.file("out"));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->num_shards, static_cast<int64_t>(kNumShards));
  EXPECT_EQ(report->reused_shards, 0);

  const auto checkpoint = Checkpoint::open(dir.file("out"));

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_TRUE(checkpoint->warnings().empty());
  EXPECT_EQ(checkpoint->total_bytes(), report->data_bytes);
  EXPECT_EQ(checkpoint->file_names().size(), kNumShards);
  const TensorPlan plan = test_plan();
  EXPECT_EQ(checkpoint->tensors().size(), plan.size());
  for (size_t i = 0; i < plan.size(); ++i) {
    const TensorRef* tensor = checkpoint->find(plan[i].name);
    ASSERT_NE(tensor, nullptr) << plan[i].name;
    EXPECT_EQ(tensor->entry.dtype, plan[i].dtype);
    EXPECT_EQ(tensor->entry.shape, plan[i].shape);
    std::string data(static_cast<size_t>(tensor->entry.bytes()), '?');
    ASSERT_TRUE(checkpoint->read(*tensor, std::as_writable_bytes(std::span(data))).ok());
    EXPECT_TRUE(data == data_of(plan, i)) << plan[i].name;
  }
}

TEST(CheckpointWriter, FilesAreTheShardsTheSideFilesTheIndexAndTheJournal) {
  std::vector<std::string> names;
  for (const auto& [name, content] : expected_files())
    names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "config.json", "fathom-journal.jsonl", "model-00001-of-00004.safetensors",
                       "model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors",
                       "model-00004-of-00004.safetensors", "model.safetensors.index.json",
                       "tokenizer.json"}));
}

TEST(CheckpointWriter, OneShardNeedsNoIndex) {
  const TempDir dir;
  CheckpointWriterOptions options = test_options();
  options.max_shard_bytes = 1 << 20;
  options.side_files.clear();

  ASSERT_TRUE(write(dir.file("out"), options).ok());

  EXPECT_EQ(*list_directory(dir.file("out")),
            (std::vector<std::string>{"fathom-journal.jsonl", "model.safetensors"}));
  EXPECT_TRUE(Checkpoint::open(dir.file("out")).ok());
}

TEST(CheckpointWriter, JournalHoldsTheChecksumOfEveryOtherFile) {
  const TempDir dir;
  ASSERT_TRUE(write(dir.file("out")).ok());

  const auto journal = read_journal(dir.file("out"));

  ASSERT_TRUE(journal.ok()) << journal.status().message();
  EXPECT_TRUE(journal->finished);
  EXPECT_EQ(journal->source, "digest of the source");
  EXPECT_EQ(journal->files.size(), files_in(dir.file("out")).size() - 1);
  for (const FileDigest& file : journal->files) {
    EXPECT_EQ(*digest_file(dir.file("out"), file.name), file);
  }
  EXPECT_EQ(journal->files.back().name, "model.safetensors.index.json") << "the index comes last";
}

TEST(CheckpointWriter, SecondRunFindsEverythingAndWritesNothing) {
  const TempDir dir;
  ASSERT_TRUE(write(dir.file("out")).ok());
  const auto before = files_in(dir.file("out"));
  const TensorPlan plan = test_plan();
  int asked = 0;

  const auto report =
      write_checkpoint(dir.file("out"), plan, test_options(), [&](size_t, TensorSink&) -> Status {
        ++asked;
        return {};
      });

  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(report->reused_shards, static_cast<int64_t>(kNumShards));
  EXPECT_TRUE(files_in(dir.file("out")) == before);
}

// Killed in the middle of each tensor, and between any two steps in which a shard is finished.
TEST(CheckpointWriter, KilledWriteIsRefusedByTheLoaderAndResumesToTheSameBytes) {
  const auto expected = expected_files();
  const TensorPlan plan = test_plan();
  for (size_t victim = 0; victim < plan.size(); ++victim) {
    for (const bool at_start : {true, false}) {
      const TempDir dir;
      const std::string out = dir.file("out");
      const TensorProducer source = test_source(plan);
      const bool killed = run_in_child([&] {
        (void)write_checkpoint(out, plan, test_options(), [&](size_t tensor, TensorSink& sink) {
          if (tensor == victim && at_start) raise(SIGKILL);
          Status status = source(tensor, sink);
          if (tensor == victim) raise(SIGKILL);
          return status;
        });
      });
      ASSERT_TRUE(killed);
      const auto opened = Checkpoint::open(out);
      EXPECT_EQ(opened.status().code(), StatusCode::kCorrupt) << "killed at tensor " << victim;

      const auto report = write(out);

      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_TRUE(files_in(out) == expected) << "killed at tensor " << victim;
    }
  }
}

TEST(CheckpointWriter, ResumeKeepsFinishedShards) {
  const TempDir dir;
  const TensorPlan plan = test_plan();
  std::vector<size_t> asked;
  const TensorProducer source = test_source(plan);
  ASSERT_TRUE(run_in_child([&] {
    (void)write_checkpoint(dir.file("out"), plan, test_options(),
                           [&](size_t tensor, TensorSink& sink) {
                             if (tensor == 4) raise(SIGKILL);
                             return source(tensor, sink);
                           });
  }));

  const auto report =
      write_checkpoint(dir.file("out"), plan, test_options(), [&](size_t tensor, TensorSink& sink) {
        asked.push_back(tensor);
        return source(tensor, sink);
      });

  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->reused_shards, 2);
  EXPECT_EQ(asked, (std::vector<size_t>{4, 5, 6}));
}

TEST(CheckpointWriter, DamagedShardIsWrittenAgain) {
  const auto expected = expected_files();
  for (const auto& [name, content] : expected) {
    if (name == kJournalName) continue;
    const TempDir dir;
    ASSERT_TRUE(write(dir.file("out")).ok());
    std::string damaged = content;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    write_bytes(dir.file("out/" + name), damaged);

    const auto report = write(dir.file("out"));

    ASSERT_TRUE(report.ok()) << name << ": " << report.status().message();
    EXPECT_EQ(report->reused_shards,
              static_cast<int64_t>(name.ends_with(".safetensors") ? kNumShards - 1 : kNumShards))
        << name;
    const auto files = files_in(dir.file("out"));
    for (const auto& [other, text] : expected) {
      if (other == kJournalName) continue;  // the same lines in another order
      EXPECT_TRUE(files.at(other) == text) << other << " after damage to " << name;
    }
    EXPECT_TRUE(Checkpoint::open(dir.file("out")).ok());
  }
}

TEST(CheckpointWriter, TornJournalLineIsDropped) {
  const TempDir dir;
  ASSERT_TRUE(write(dir.file("out")).ok());
  const auto expected = files_in(dir.file("out"));
  const std::string journal = expected.at(std::string(kJournalName));
  for (size_t cut = 0; cut < journal.size(); cut += 41) {
    write_bytes(dir.file("out/" + std::string(kJournalName)), journal.substr(0, cut));
    if (cut == 0 || journal.find('\n') >= cut) continue;  // then nothing vouches for the shards
    ASSERT_TRUE(write(dir.file("out")).ok()) << "cut at " << cut;
    EXPECT_TRUE(files_in(dir.file("out")) == expected) << "cut at " << cut;
  }
}

TEST(CheckpointWriter, OtherOptionsSourcesAndPlansAreRefused) {
  const TempDir dir;
  ASSERT_TRUE(write(dir.file("out")).ok());
  const auto before = files_in(dir.file("out"));
  CheckpointWriterOptions other_options = test_options();
  other_options.options = "--format mxfp4";
  CheckpointWriterOptions other_source = test_options();
  other_source.source_digest = "another";
  CheckpointWriterOptions other_plan = test_options();
  other_plan.max_shard_bytes = 8192;

  const auto refused = write(dir.file("out"), other_options);

  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            dir.file("out") +
                ": holds a write with other options (\"--format nvfp4\", now \"--format "
                "mxfp4\")\nhint: choose another directory or delete this one");
  EXPECT_EQ(write(dir.file("out"), other_source).status().message(),
            dir.file("out") +
                ": holds a write of another source, or of this one before its files changed\n"
                "hint: choose another directory or delete this one");
  EXPECT_EQ(write(dir.file("out"), other_plan).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(files_in(dir.file("out")) == before);
}

TEST(CheckpointWriter, ForeignWeightsAreNotReplaced) {
  const TempDir dir;
  write_safetensors(dir.file("model.safetensors"), {{"a", Format::kU8, {1}, 'a'}});
  const auto before = files_in(dir.path());

  EXPECT_EQ(write(dir.path()).status().message(),
            dir.path() +
                ": holds model.safetensors already\nhint: choose another directory or delete it");
  EXPECT_TRUE(files_in(dir.path()) == before);
}

TEST(CheckpointWriter, ForeignConfigurationIsNotReplaced) {
  const TempDir dir;
  ASSERT_TRUE(write_file(dir.file("config.json"), "mine").ok());
  CheckpointWriterOptions options = test_options();
  options.side_files = {{"config.json", "{}"}};

  EXPECT_EQ(
      write(dir.path(), options).status().message(),
      dir.path() + ": holds config.json already\nhint: choose another directory or delete it");
  EXPECT_EQ(files_in(dir.path()).size(), 1u);
}

TEST(CheckpointWriter, OutputThatIsTheInputIsRefused) {
  const TempDir dir;
  CheckpointWriterOptions options = test_options();
  options.source_directory = dir.path() + "/../" + std::string(base_name(dir.path())) + "/.";
  EXPECT_EQ(write(dir.path(), options).status().message(),
            "the output " + dir.path() + " is the input");
  EXPECT_TRUE(list_directory(dir.path())->empty());
}

TEST(CheckpointWriter, SecondWriterIsRefused) {
  const TempDir dir;
  const auto lock = DirectoryLock::acquire(dir.path());
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(write(dir.path()).status().message(),
            "cannot lock " + dir.path() +
                ": another process is writing to it\nhint: wait until that one has ended, or write "
                "elsewhere");
}

TEST(CheckpointWriter, WrongAmountOfDataIsRefusedAndLeavesNothingLoadable) {
  const TensorPlan plan = {{"a", Format::kU8, {10}, 0, 0}};
  const std::string data(11, 'x');
  const auto write_bytes_of = [&](const TempDir& dir, size_t size) {
    return write_checkpoint(dir.file("out"), plan, test_options(), [&](size_t, TensorSink& sink) {
      return sink.append(std::as_bytes(std::span(data).first(size)));
    });
  };
  const TempDir dir;

  EXPECT_EQ(write_bytes_of(dir, 9).status().message(),
            "tensor \"a\": 1 bytes are missing of U8 [10]");
  EXPECT_FALSE(has_partial(dir.file("out")));
  EXPECT_FALSE(Checkpoint::open(dir.file("out")).ok());
  EXPECT_EQ(write_bytes_of(dir, 11).status().message(),
            "writing tensor \"a\": 11 bytes for the 10 that are left");
  EXPECT_FALSE(has_partial(dir.file("out")));
  EXPECT_FALSE(Checkpoint::open(dir.file("out")).ok());
  EXPECT_TRUE(write_bytes_of(dir, 10).ok());
  EXPECT_TRUE(Checkpoint::open(dir.file("out")).ok());
}

TEST(CheckpointWriter, FailingSourceLeavesNothingLoadableAndCanBeResumed) {
  const auto expected = expected_files();
  const TempDir dir;
  const TensorPlan plan = test_plan();
  const TensorProducer source = test_source(plan);

  const auto failed = write_checkpoint(dir.file("out"), plan, test_options(),
                                       [&](size_t tensor, TensorSink& sink) -> Status {
                                         if (tensor == 4) return corrupt("bad input");
                                         return source(tensor, sink);
                                       });

  EXPECT_EQ(failed.status().message(), "writing tensor \"c.weight\": bad input");
  EXPECT_EQ(failed.status().code(), StatusCode::kCorrupt);
  EXPECT_FALSE(has_partial(dir.file("out")));
  EXPECT_EQ(Checkpoint::open(dir.file("out")).status().code(), StatusCode::kCorrupt);
  ASSERT_TRUE(write(dir.file("out")).ok());
  EXPECT_TRUE(files_in(dir.file("out")) == expected);
}

// The kernel refuses to let any file grow beyond the limit, as a full disk would.
TEST(CheckpointWriter, FullDiskLeavesNothingLoadableAndCanBeResumed) {
  const auto expected = expected_files();
  for (const rlim_t limit : {rlim_t{0}, rlim_t{100}, rlim_t{1000}, rlim_t{3000}, rlim_t{4000}}) {
    const TempDir dir;
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = signal(SIGXFSZ, SIG_IGN);
    const rlimit lowered{limit, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &lowered), 0);
    const auto failed = write(dir.file("out"));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);

    ASSERT_FALSE(failed.ok()) << "limit " << limit;
    EXPECT_EQ(failed.status().code(), StatusCode::kIo) << failed.status().message();
    EXPECT_FALSE(has_partial(dir.file("out"))) << "limit " << limit;
    EXPECT_FALSE(Checkpoint::open(dir.file("out")).ok()) << "limit " << limit;

    ASSERT_TRUE(write(dir.file("out")).ok()) << "limit " << limit;
    EXPECT_TRUE(files_in(dir.file("out")) == expected) << "limit " << limit;
  }
}

TEST(CheckpointWriter, MoreThanTheDiskHasIsRefusedBeforeAnythingIsProduced) {
  const TempDir dir;
  TensorPlan plan;
  for (int i = 0; i < 1000; ++i) {
    plan.push_back({str_cat("t", i), Format::kU8, {int64_t{1} << 40}, 0, 0});
  }
  int asked = 0;

  const auto refused =
      write_checkpoint(dir.file("out"), plan, test_options(), [&](size_t, TensorSink&) -> Status {
        ++asked;
        return {};
      });

  EXPECT_EQ(refused.status().code(), StatusCode::kIo);
  EXPECT_NE(refused.status().message().find(": needs 1099511"), std::string::npos)
      << refused.status().message();
  EXPECT_EQ(asked, 0);
}

TEST(CheckpointWriter, SideFilesNeedPlainNamesOfTheirOwn) {
  const TempDir dir;
  for (const char* name : {"../x", "model.safetensors.index.json", "fathom-journal.jsonl",
                           "a.partial", "model.safetensors", ".hidden", "config.json"}) {
    CheckpointWriterOptions options = test_options();
    options.side_files.emplace_back(name, "x");
    EXPECT_EQ(write(dir.file("out"), options).status().message(),
              str_cat("file name \"", name, "\", expected a plain name that no other file has"));
  }
  EXPECT_EQ(path_kind(dir.file("out")), PathKind::kMissing);
}

}  // namespace
}  // namespace fathom
