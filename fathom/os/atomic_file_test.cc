#include "fathom/os/atomic_file.h"

#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <signal.h>
#include <string>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "fathom/os/file.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

void put(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<long>(text.size()));
}

std::vector<std::string> names_in(const TempDir& dir) {
  return *list_directory(dir.path());
}

std::string content(const std::string& path) {
  const auto text = read_file(path, 1 << 26);
  return text.ok() ? *text : text.status().message();
}

// Runs `body` with files limited to `bytes`, as a full disk would: the kernel itself refuses writes
// beyond that. The signal that comes with the refusal is ignored.
void with_file_limit(rlim_t bytes, const std::function<void()>& body) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  body();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
}

TEST(AtomicFile, TargetAppearsOnlyWithCommit) {
  const TempDir dir;
  auto file = AtomicFile::create(dir.file("a"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file->append("hello ").ok());
  ASSERT_TRUE(file->append("world").ok());
  EXPECT_EQ(file->written_bytes(), 11);
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"a.partial"});

  ASSERT_TRUE(file->commit().ok());

  EXPECT_EQ(names_in(dir), std::vector<std::string>{"a"});
  EXPECT_EQ(content(dir.file("a")), "hello world");
}

TEST(AtomicFile, OldFileStaysUntilCommitReplacesIt) {
  const TempDir dir;
  put(dir.file("a"), "old");
  auto file = AtomicFile::create(dir.file("a"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->append("new").ok());
  EXPECT_EQ(content(dir.file("a")), "old");

  ASSERT_TRUE(file->commit().ok());

  EXPECT_EQ(content(dir.file("a")), "new");
}

TEST(AtomicFile, WithoutCommitNothingIsLeft) {
  const TempDir dir;
  {
    auto file = AtomicFile::create(dir.file("a"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append("text").ok());
  }
  EXPECT_TRUE(names_in(dir).empty());
}

TEST(AtomicFile, PiecesOfAllSizesKeepTheirOrder) {
  const TempDir dir;
  std::string expected;
  auto file = AtomicFile::create(dir.file("a"));
  ASSERT_TRUE(file.ok());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, size_t{1} << 20,
                            (size_t{1} << 20) + 1, size_t{3}, (size_t{1} << 20) - 1, size_t{7}}) {
    const std::string piece(size, static_cast<char>('a' + size % 26));
    expected += piece;
    ASSERT_TRUE(file->append(piece).ok());
  }
  ASSERT_TRUE(file->commit().ok());

  EXPECT_TRUE(content(dir.file("a")) == expected);
}

TEST(AtomicFile, ReservationDoesNotShowInTheResult) {
  const TempDir dir;
  auto file = AtomicFile::create(dir.file("a"), {.reserve_bytes = 1 << 20});
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file->append("short").ok());
  ASSERT_TRUE(file->commit().ok());

  EXPECT_EQ(content(dir.file("a")), "short");

  struct stat info {};

  ASSERT_EQ(stat(dir.file("a").c_str(), &info), 0);
  EXPECT_LT(info.st_blocks * 512, 1 << 19);
}

TEST(AtomicFile, ReservingMoreThanTheDiskHasFailsFirstAndNamesBothNumbers) {
  const TempDir dir;
  const int64_t free = *free_space_bytes(dir.path());
  const auto file = AtomicFile::create(dir.file("a"), {.reserve_bytes = int64_t{1} << 60});

  EXPECT_EQ(file.status().code(), StatusCode::kIo);
  const std::string message = file.status().message();
  EXPECT_EQ(message.find("cannot reserve 1152921504606846976 bytes for " + dir.file("a")), 0u)
      << message;
  EXPECT_NE(message.find(" bytes are free)"), std::string::npos) << message << " " << free;
  EXPECT_TRUE(names_in(dir).empty());
}

TEST(AtomicFile, RefusedWriteRemovesThePartialAndKeepsTheOldFile) {
  const TempDir dir;
  put(dir.file("a"), "old");
  with_file_limit(1 << 20, [&] {
    auto file = AtomicFile::create(dir.file("a"));
    ASSERT_TRUE(file.ok());
    const std::string data((1 << 20) + 1, 'x');

    const Status status = file->append(data);

    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_EQ(status.message(),
              "cannot write " + dir.file("a") +
                  ": File too large\nhint: the shell limits the size of files (ulimit -f)");
    EXPECT_EQ(names_in(dir), std::vector<std::string>{"a"});
    EXPECT_EQ(file->append("more").message(),
              "cannot write " + dir.file("a") + ": it was abandoned");
    EXPECT_EQ(file->commit().code(), StatusCode::kIo);
  });
  EXPECT_EQ(content(dir.file("a")), "old");
}

TEST(AtomicFile, WriteRefusedAtCommitRemovesThePartialToo) {
  const TempDir dir;
  with_file_limit(1000, [&] {
    auto file = AtomicFile::create(dir.file("a"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append(std::string(1001, 'x')).ok());  // waits in memory

    EXPECT_EQ(file->commit().code(), StatusCode::kIo);
  });
  EXPECT_TRUE(names_in(dir).empty());
}

TEST(AtomicFile, SecondWriterIsRefused) {
  const TempDir dir;
  auto first = AtomicFile::create(dir.file("a"));
  ASSERT_TRUE(first.ok());

  const auto second = AtomicFile::create(dir.file("a"));

  EXPECT_EQ(second.status().message(), "cannot write " + dir.file("a") +
                                           ": another process is writing it\nhint: wait until that "
                                           "one has ended, or write elsewhere");
  ASSERT_TRUE(first->append("mine").ok());
  ASSERT_TRUE(first->commit().ok());
  EXPECT_EQ(content(dir.file("a")), "mine");
}

TEST(AtomicFile, PartialOfADeadProcessIsReplaced) {
  const TempDir dir;
  put(dir.file("a.partial"), "left by somebody who is gone, and longer than the new text");

  ASSERT_TRUE(write_file(dir.file("a"), "new").ok());

  EXPECT_EQ(names_in(dir), std::vector<std::string>{"a"});
  EXPECT_EQ(content(dir.file("a")), "new");
}

TEST(AtomicFile, PartialThatIsALinkIsNotFollowed) {
  const TempDir dir;
  put(dir.file("victim"), "precious");
  ASSERT_EQ(symlink("victim", dir.file("a.partial").c_str()), 0);

  EXPECT_EQ(write_file(dir.file("a"), "new").code(), StatusCode::kIo);

  EXPECT_EQ(content(dir.file("victim")), "precious");
}

TEST(AtomicFile, DirectoriesAndMissingParentsAreRefused) {
  const TempDir dir;
  EXPECT_EQ(
      write_file(dir.path(), "x").message(),
      "cannot write " + dir.path() +
          ": is a directory, expected a regular file or a new name\nhint: choose another name");
  EXPECT_EQ(write_file(dir.file("none/a"), "x").message(),
            "cannot create " + dir.file("none/a") +
                ": No such file or directory\nhint: the directory of that file must be there");
  EXPECT_EQ(write_file(dir.file("none/a"), "x").code(), StatusCode::kIo);
}

TEST(AtomicFile, PipeIsRefusedAndStays) {
  const TempDir dir;
  const std::string pipe = dir.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(symlink("pipe", dir.file("link").c_str()), 0);

  EXPECT_EQ(write_file(pipe, "x").code(), StatusCode::kIo);
  EXPECT_EQ(write_file(pipe, "x").message(),
            "cannot write " + pipe +
                ": is a pipe, expected a regular file or a new name\nhint: choose another name");
  EXPECT_EQ(write_file(dir.file("link"), "x").message(),
            "cannot write " + dir.file("link") +
                ": is a pipe, expected a regular file or a new name\nhint: choose another name");

  struct stat info {};

  ASSERT_EQ(lstat(pipe.c_str(), &info), 0);
  EXPECT_TRUE(S_ISFIFO(info.st_mode));
  EXPECT_EQ(names_in(dir), (std::vector<std::string>{"link", "pipe"}));
}

TEST(AtomicFile, DeviceIsRefusedAndStays) {
  const TempDir dir;
  // A device of the test's own: the writer would replace that of the machine if it were wrong.
  const std::string device = dir.file("device");
  if (mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) GTEST_SKIP() << "no right to";

  EXPECT_EQ(write_file(device, "x").message(),
            "cannot write " + device +
                ": is a device, expected a regular file or a new name\nhint: choose another name");

  EXPECT_EQ(path_kind(device), PathKind::kOther);
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"device"});
}

TEST(AtomicFile, LinkStaysAndItsTargetIsReplaced) {
  const TempDir dir;
  ASSERT_TRUE(make_directories(dir.file("far")).ok());
  put(dir.file("far/a"), "old");
  ASSERT_EQ(symlink("far/a", dir.file("near").c_str()), 0);
  ASSERT_EQ(symlink(dir.file("near").c_str(), dir.file("link").c_str()), 0);
  auto file = AtomicFile::create(dir.file("link"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file->append("new").ok());
  EXPECT_EQ(content(dir.file("far/a")), "old");
  EXPECT_EQ(path_kind(dir.file("far/a.partial")), PathKind::kFile) << "beside the target";

  ASSERT_TRUE(file->commit().ok());

  EXPECT_EQ(content(dir.file("far/a")), "new");
  for (const char* link : {"near", "link"}) {
    struct stat info {};

    ASSERT_EQ(lstat(dir.file(link).c_str(), &info), 0);
    EXPECT_TRUE(S_ISLNK(info.st_mode)) << link;
  }
  EXPECT_EQ(*list_directory(dir.file("far")), std::vector<std::string>{"a"});
}

TEST(AtomicFile, LinkToNothingCreatesItsTarget) {
  const TempDir dir;
  ASSERT_TRUE(make_directories(dir.file("far")).ok());
  ASSERT_EQ(symlink("far/a", dir.file("link").c_str()), 0);
  ASSERT_EQ(symlink("absent/a", dir.file("lost").c_str()), 0);

  ASSERT_TRUE(write_file(dir.file("link"), "new").ok());

  EXPECT_EQ(content(dir.file("far/a")), "new");
  EXPECT_EQ(names_in(dir), (std::vector<std::string>{"far", "link", "lost"}));
  EXPECT_EQ(write_file(dir.file("lost"), "x").message(),
            "cannot create " + dir.file("absent/a") +
                ": No such file or directory\nhint: the directory of that file must be there");
}

TEST(AtomicFile, LinksInACircleAreAnError) {
  const TempDir dir;
  ASSERT_EQ(symlink("b", dir.file("a").c_str()), 0);
  ASSERT_EQ(symlink("a", dir.file("b").c_str()), 0);

  const Status status = write_file(dir.file("a"), "x");

  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(), "cannot write " + dir.file("a") +
                                  ": Too many levels of symbolic links\nhint: `namei` with that "
                                  "path shows the links; make them lead to a file");
  EXPECT_EQ(names_in(dir), (std::vector<std::string>{"a", "b"}));
}

TEST(CheckWritable, SaysWhatAWriteWouldAndLeavesNothing) {
  const TempDir dir;
  put(dir.file("old"), "old");

  EXPECT_TRUE(check_writable(dir.file("old")).ok());
  EXPECT_TRUE(check_writable(dir.file("new")).ok());
  EXPECT_EQ(check_writable(dir.file("none/a")).code(), StatusCode::kIo);

  EXPECT_EQ(names_in(dir), std::vector<std::string>{"old"});
  EXPECT_EQ(content(dir.file("old")), "old");
}

TEST(AtomicFile, ModeIsThatOfTheOptions) {
  const TempDir dir;
  ASSERT_TRUE(write_file(dir.file("a"), "secret", {.mode = 0600}).ok());

  struct stat info {};

  ASSERT_EQ(stat(dir.file("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// A child replaces one file over and over and is killed at some instant: the file is then always
// one of the two whole contents, and the next writer is not hindered.
TEST(AtomicFile, KilledWriterLeavesTheOldOrTheNewFile) {
  const TempDir dir;
  const std::string contents[] = {std::string(100'000, 'a'), std::string(200'000, 'b')};
  ASSERT_TRUE(write_file(dir.file("a"), contents[0]).ok());
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int i = 0;; ++i) {
        if (!write_file(dir.file("a"), contents[i % 2]).ok()) _exit(1);
      }
    }
    usleep(static_cast<useconds_t>(500 + 397 * round));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));

    const std::string found = content(dir.file("a"));
    EXPECT_TRUE(found == contents[0] || found == contents[1]) << found.size() << " bytes";
  }
  EXPECT_TRUE(write_file(dir.file("a"), "end").ok());
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"a"});
}

TEST(AppendFile, LinesAreThereAfterEachCall) {
  const TempDir dir;
  auto file = AppendFile::open(dir.file("log"), 0);
  ASSERT_TRUE(file.ok()) << file.status().message();

  ASSERT_TRUE(file->append_line("one").ok());
  EXPECT_EQ(content(dir.file("log")), "one\n");
  ASSERT_TRUE(file->append_line("two").ok());
  EXPECT_EQ(content(dir.file("log")), "one\ntwo\n");
}

TEST(AppendFile, OpeningKeepsTheBytesAskedFor) {
  const TempDir dir;
  put(dir.file("log"), "one\ntorn li");
  auto file = AppendFile::open(dir.file("log"), 4);
  ASSERT_TRUE(file.ok());

  ASSERT_TRUE(file->append_line("two").ok());

  EXPECT_EQ(content(dir.file("log")), "one\ntwo\n");
}

TEST(AppendFile, RefusedWriteIsAnError) {
  const TempDir dir;
  auto file = AppendFile::open(dir.file("log"), 0);
  ASSERT_TRUE(file.ok());
  with_file_limit(8, [&] {
    EXPECT_EQ(file->append_line("more than eight bytes").message(),
              "cannot write " + dir.file("log") +
                  ": File too large\nhint: the shell limits the size of files (ulimit -f)");
  });
}

TEST(DirectoryLock, OneHolderAtATime) {
  const TempDir dir;
  {
    const auto first = DirectoryLock::acquire(dir.path());
    ASSERT_TRUE(first.ok());
    const auto second = DirectoryLock::acquire(dir.path());
    EXPECT_EQ(second.status().code(), StatusCode::kIo);
    EXPECT_EQ(second.status().message(), "cannot lock " + dir.path() +
                                             ": another process is writing to it\nhint: wait until "
                                             "that one has ended, or write elsewhere");
  }
  EXPECT_TRUE(names_in(dir).empty());
  EXPECT_TRUE(DirectoryLock::acquire(dir.path()).ok());
}

TEST(DirectoryLock, LockOfADeadProcessIsTaken) {
  const TempDir dir;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lock = DirectoryLock::acquire(dir.path());
    _exit(lock.ok() ? 0 : 1);  // ends without the destructor: the file stays
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(WEXITSTATUS(status), 0);
  ASSERT_EQ(names_in(dir), std::vector<std::string>{".fathom.lock"});

  EXPECT_TRUE(DirectoryLock::acquire(dir.path()).ok());
}

TEST(DirectoryLock, MissingDirectoryIsAnError) {
  const TempDir dir;
  EXPECT_EQ(DirectoryLock::acquire(dir.file("none")).status().code(), StatusCode::kIo);
}

}  // namespace
}  // namespace fathom
