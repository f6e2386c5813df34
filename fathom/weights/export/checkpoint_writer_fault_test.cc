// Kill and failure at every fail point of a write. Only in builds with FATHOM_FAILPOINTS: a fault
// is injected into a child process, which is this program again with one test.
#ifdef FATHOM_FAILPOINTS

#include <fcntl.h>
#include <gtest/gtest.h>
#include <map>
#include <signal.h>
#include <stdlib.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/export/checkpoint_writer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

// Makes the child's test write to its working directory.
constexpr const char* kMarker = "write-here";

Result<WriteReport> write(const std::string& directory) {
  const TensorPlan plan = {{"a", Format::kU8, {3000}, 0, 0}, {"b", Format::kF32, {900}, 0, 0}};
  CheckpointWriterOptions options;
  options.max_shard_bytes = 4000;
  options.side_files = {{"config.json", "{}"}};
  return write_checkpoint(directory, plan, options, [&](size_t i, TensorSink& sink) {
    const std::string data(static_cast<size_t>(sink.bytes_left()), static_cast<char>('a' + i));
    return sink.append(std::as_bytes(std::span(data)));
  });
}

std::map<std::string, std::string> files_in(const std::string& directory) {
  std::map<std::string, std::string> files;
  const auto names = list_directory(directory);
  if (!names.ok()) return files;
  for (const std::string& name : *names) {
    if (name == DirectoryLock::kFileName) continue;  // a killed process leaves it behind, unlocked
    const auto text = read_file(join_path(directory, name), 1 << 24);
    files[name] = text.ok() ? *text : text.status().message();
  }
  return files;
}

// Writes to dir/out in a child with the fault; returns the status of waitpid.
int write_in_child(const TempDir& dir, const std::string& fault) {
  write_bytes(dir.file(kMarker), "");
  const pid_t child = fork();
  FATHOM_CHECK(child >= 0, "fork");
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    dup2(null, 2);
    if (chdir(dir.path().c_str()) != 0) _exit(99);
    setenv("FATHOM_FAIL", fault.c_str(), 1);
    unsetenv("GTEST_TOTAL_SHARDS");  // shards are of this program, not of its child
    unsetenv("GTEST_SHARD_INDEX");
    execl("/proc/self/exe", "weights_test",
          "--gtest_filter=CheckpointWriterFaults.WriteWithoutFaultsSucceeds", nullptr);
    _exit(98);
  }
  int status = 0;
  FATHOM_CHECK(waitpid(child, &status, 0) == child, "waitpid");
  return status;
}

TEST(CheckpointWriterFaults, WriteWithoutFaultsSucceeds) {
  const TempDir dir;
  const bool is_child = access(kMarker, F_OK) == 0;
  const auto report = write(is_child ? "out" : dir.file("out"));
  EXPECT_TRUE(report.ok()) << report.status().message();
}

void check_every_visit(std::string_view action) {
  const TempDir reference;
  ASSERT_TRUE(write(reference.file("out")).ok());
  const auto expected = files_in(reference.file("out"));
  for (int visit = 1;; ++visit) {
    ASSERT_LT(visit, 1000) << "the write never gets through";
    const TempDir dir;
    const int status = write_in_child(dir, str_cat("*:", action, ":", visit, ":1"));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      EXPECT_TRUE(files_in(dir.file("out")) == expected);
      EXPECT_GT(visit, 20) << "few fail points were visited";
      return;
    }
    const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    ASSERT_TRUE(was_killed == (action == "kill_nth")) << "visit " << visit << " status " << status;
    if (!was_killed) {
      ASSERT_EQ(WEXITSTATUS(status), 1) << "visit " << visit;
    }
    for (const auto& [name, content] : files_in(dir.file("out"))) {
      EXPECT_TRUE(was_killed || !name.ends_with(kPartialSuffix)) << name << " at visit " << visit;
    }
    // After the last line of the journal everything is there; before, nothing may load.
    if (Checkpoint::open(dir.file("out")).ok()) {
      EXPECT_TRUE(files_in(dir.file("out")) == expected) << "visit " << visit;
    }

    const auto resumed = write(dir.file("out"));

    ASSERT_TRUE(resumed.ok()) << "visit " << visit << ": " << resumed.status().message();
    EXPECT_TRUE(files_in(dir.file("out")) == expected) << "visit " << visit;
  }
}

TEST(CheckpointWriterFaults, FailureAnywhereLeavesNothingHalfAndResumesToTheSameBytes) {
  check_every_visit("fail_nth");
}

TEST(CheckpointWriterFaults, KillAnywhereLeavesNothingHalfAndResumesToTheSameBytes) {
  check_every_visit("kill_nth");
}

}  // namespace
}  // namespace fathom

#endif  // FATHOM_FAILPOINTS
