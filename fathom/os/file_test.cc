#include "fathom/os/file.h"

#include <cerrno>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "fathom/base/str_cat.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

void put(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<long>(text.size()));
}

std::string read_range(const File& file, int64_t offset, size_t size) {
  std::string text(size, '?');
  const Status status = file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return status.ok() ? text : status.message();
}

TEST(File, ReadsAnyRange) {
  const TempDir dir;
  put(dir.file("a"), "0123456789");
  const auto file = File::open(dir.file("a"));
  ASSERT_TRUE(file.ok());

  EXPECT_EQ(file->size(), 10);
  EXPECT_EQ(file->path(), dir.file("a"));
  EXPECT_EQ(read_range(*file, 0, 10), "0123456789");
  EXPECT_EQ(read_range(*file, 3, 4), "3456");
  EXPECT_EQ(read_range(*file, 9, 1), "9");
  EXPECT_EQ(read_range(*file, 10, 0), "");
}

TEST(File, ReadPastTheEndNamesTheByteWhereItEnds) {
  const TempDir dir;
  put(dir.file("a"), "0123456789");
  const auto file = File::open(dir.file("a"));
  ASSERT_TRUE(file.ok());

  std::vector<std::byte> dst(5);
  const Status past = file->read_at(8, dst);

  EXPECT_EQ(past.code(), StatusCode::kCorrupt);
  EXPECT_EQ(past.message(), dir.file("a") +
                                ": ends at byte 10, expected 5 bytes at offset 8\nhint: it was cut "
                                "while it was read; try again when nothing writes it");
  EXPECT_EQ(file->read_at(50, dst).code(), StatusCode::kCorrupt);
}

TEST(File, FileThatShrinksWhileOpenIsCorruptNotACrash) {
  const TempDir dir;
  put(dir.file("a"), std::string(100, 'x'));
  const auto file = File::open(dir.file("a"));
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(truncate(dir.file("a").c_str(), 40), 0);

  std::vector<std::byte> dst(100);
  EXPECT_EQ(file->read_at(0, dst).message(),
            dir.file("a") +
                ": ends at byte 40, expected 100 bytes at offset 0\nhint: it was cut "
                "while it was read; try again when nothing writes it");
}

TEST(File, MissingFileIsNotFoundWithTheReason) {
  const TempDir dir;
  const auto file = File::open(dir.file("none"));
  EXPECT_EQ(file.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(file.status().message(), "cannot open " + dir.file("none") +
                                         ": No such file or directory\nhint: `ls " + dir.path() +
                                         "` shows what is there");
  EXPECT_EQ(File::open(dir.file("none/further")).status().message(),
            "cannot open " + dir.file("none/further") +
                ": No such file or directory\nhint: " + dir.file("none") + " is not there either");
  EXPECT_EQ(File::open("no_such_file").status().message(),
            "cannot open no_such_file: No such file or directory\nhint: the path is taken from the "
            "current directory; `ls` shows what is there");
}

TEST(ErrnoStatus, SaysWhatHelps) {
  const std::pair<int, const char*> helps[] = {
      {EACCES, "`namei -l` with that path shows which permission this user lacks"},
      {ENOTDIR, "/etc/passwd is no directory"},
      {ENOSPC, "free some space there, or write elsewhere"},
      {EROFS, "that file system is mounted to be read only; write elsewhere"},
      {EMFILE, "raise the limit of open files (ulimit -n)"},
      {EIO, "the disk or the network behind it fails; `dmesg` may say more"},
  };
  for (const auto& [error, hint] : helps) {
    EXPECT_TRUE(
        errno_status("read", "/etc/passwd/a", error).message().ends_with(str_cat("\nhint: ", hint)))
        << errno_status("read", "/etc/passwd/a", error).message();
  }
  EXPECT_EQ(errno_status("start", "a process", EAGAIN).message(),
            "cannot start a process: Resource temporarily unavailable");
}

TEST(File, OnlyRegularFilesOpen) {
  const TempDir dir;
  ASSERT_EQ(mkfifo(dir.file("pipe").c_str(), 0600), 0);

  EXPECT_EQ(File::open(dir.path()).status().message(),
            dir.path() +
                ": is a directory, expected a regular file\nhint: name a file in it, or "
                "put the file in its place");
  EXPECT_EQ(File::open(dir.file("pipe")).status().message(),
            dir.file("pipe") +
                ": is a pipe, expected a regular file\nhint: name a file, or put "
                "one in its place");
  EXPECT_EQ(File::open("/dev/null").status().message(),
            "/dev/null: is a device, expected a regular file\nhint: name a file, or put one in its "
            "place");
}

TEST(File, LinksAreFollowedUnlessRefused) {
  const TempDir dir;
  put(dir.file("a"), "text");
  ASSERT_EQ(symlink("a", dir.file("link").c_str()), 0);

  EXPECT_TRUE(File::open(dir.file("link")).ok());
  EXPECT_TRUE(File::open(dir.file("a"), Symlinks::kRefuse).ok());
  EXPECT_EQ(
      File::open(dir.file("link"), Symlinks::kRefuse).status().message(),
      dir.file("link") +
          ": is a symbolic link, expected a regular file (links are refused here)\nhint: put the "
          "file itself in its place");
}

TEST(File, LinkThatLeadsNowhereIsCorruptAndNotAbsent) {
  const TempDir dir;
  ASSERT_EQ(symlink("gone", dir.file("link").c_str()), 0);
  ASSERT_EQ(symlink("circle", dir.file("circle").c_str()), 0);

  EXPECT_EQ(File::open(dir.file("link")).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(File::open(dir.file("link")).status().message(),
            dir.file("link") +
                ": is a symbolic link to a file that is not there\nhint: fetch the "
                "file that it leads to, or make the link anew");
  EXPECT_EQ(File::open(dir.file("circle")).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(File::open(dir.file("absent")).status().code(), StatusCode::kNotFound);
}

TEST(File, AnythingButARegularFileIsCorrupt) {
  EXPECT_EQ(File::open("/dev/null").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(File::open("/").status().code(), StatusCode::kCorrupt);
}

TEST(File, PathWithAZeroByteIsRefused) {
  EXPECT_EQ(File::open(std::string("/etc\0/x", 7)).status().code(), StatusCode::kInvalidArgument);
}

TEST(File, MoveLeavesNothingBehind) {
  const TempDir dir;
  put(dir.file("a"), "text");
  auto first = File::open(dir.file("a"));
  ASSERT_TRUE(first.ok());

  const File second = std::move(*first);

  EXPECT_EQ(read_range(second, 0, 4), "text");
  EXPECT_EQ(first->descriptor(), -1);
}

TEST(ReadFile, TakesTheWholeFileUpToTheLimit) {
  const TempDir dir;
  put(dir.file("a"), "0123456789");
  put(dir.file("empty"), "");

  EXPECT_EQ(*read_file(dir.file("a"), 10), "0123456789");
  EXPECT_EQ(*read_file(dir.file("empty"), 0), "");
  EXPECT_EQ(read_file(dir.file("a"), 9).status().message(),
            dir.file("a") + ": is 10 bytes long, expected at most 9");
  EXPECT_EQ(read_file(dir.file("a"), 9).status().code(), StatusCode::kCorrupt);
}

TEST(ReadKernelFile, ReadsFilesWithoutASize) {
  const auto text = read_kernel_file("/proc/self/status");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->substr(0, 5), "Name:");
  EXPECT_EQ(read_kernel_file("/proc/none").status().code(), StatusCode::kNotFound);
}

TEST(ListDirectory, IsSortedAndComplete) {
  const TempDir dir;
  for (const char* name : {"b", "a", "B", ".hidden", "a10", "a2"})
    put(dir.file(name), "");
  ASSERT_EQ(mkdir(dir.file("sub").c_str(), 0700), 0);

  EXPECT_EQ(*list_directory(dir.path()),
            (std::vector<std::string>{".hidden", "B", "a", "a10", "a2", "b", "sub"}));
  EXPECT_EQ(list_directory(dir.file("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(list_directory(dir.file("a")).status().code(), StatusCode::kNotFound);
}

TEST(PathKind, FollowsLinks) {
  const TempDir dir;
  put(dir.file("a"), "");
  ASSERT_EQ(symlink("a", dir.file("link").c_str()), 0);
  ASSERT_EQ(symlink("gone", dir.file("dangling").c_str()), 0);

  EXPECT_EQ(path_kind(dir.file("a")), PathKind::kFile);
  EXPECT_EQ(path_kind(dir.file("link")), PathKind::kFile);
  EXPECT_EQ(path_kind(dir.file("dangling")), PathKind::kMissing);
  EXPECT_EQ(path_kind(dir.path()), PathKind::kDirectory);
  EXPECT_EQ(path_kind("/dev/null"), PathKind::kOther);
}

TEST(MakeDirectories, MakesParentsAndTakesExistingOnes) {
  const TempDir dir;
  put(dir.file("a"), "");

  EXPECT_TRUE(make_directories(dir.file("x/y/z")).ok());
  EXPECT_TRUE(make_directories(dir.file("x/y/z/")).ok());
  EXPECT_EQ(path_kind(dir.file("x/y/z")), PathKind::kDirectory);
  EXPECT_EQ(make_directories(dir.file("a")).message(),
            "cannot make directory " + dir.file("a") +
                ": a file of that name exists\nhint: choose another directory or delete it");
  EXPECT_FALSE(make_directories(dir.file("a/b")).ok());
}

TEST(MakeDirectories, CheckSaysTheSameAndLeavesNothing) {
  const TempDir dir;
  put(dir.file("a"), "");
  ASSERT_TRUE(make_directories(dir.file("kept")).ok());

  EXPECT_TRUE(check_make_directories(dir.file("x/y/z")).ok());
  EXPECT_TRUE(check_make_directories(dir.file("kept")).ok());
  EXPECT_TRUE(check_make_directories(dir.file("kept/new/")).ok());
  EXPECT_EQ(check_make_directories(dir.file("a/b")).message(),
            "cannot make directory " + dir.file("a/b") +
                ": Not a directory\nhint: " + dir.file("a") + " is no directory");

  EXPECT_EQ(*list_directory(dir.path()), (std::vector<std::string>{"a", "kept"}));
  EXPECT_TRUE(list_directory(dir.file("kept"))->empty());
}

TEST(RemoveFile, MissingFileIsNoError) {
  const TempDir dir;
  put(dir.file("a"), "");

  EXPECT_TRUE(remove_file(dir.file("a")).ok());
  EXPECT_EQ(path_kind(dir.file("a")), PathKind::kMissing);
  EXPECT_TRUE(remove_file(dir.file("a")).ok());
  EXPECT_FALSE(remove_file(dir.path()).ok());
}

TEST(FreeSpace, IsKnownForDirectoriesAndNotForMissingPaths) {
  const TempDir dir;
  const auto free = free_space_bytes(dir.path());
  ASSERT_TRUE(free.ok());
  EXPECT_GT(*free, 0);
  EXPECT_EQ(free_space_bytes(dir.file("none")).status().code(), StatusCode::kNotFound);
}

TEST(Paths, JoinAndSplit) {
  EXPECT_EQ(join_path("/a", "b"), "/a/b");
  EXPECT_EQ(join_path("/a/", "b"), "/a/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(base_name("/a/b"), "b");
  EXPECT_EQ(base_name("b"), "b");
  EXPECT_EQ(base_name("/a/"), "");
  EXPECT_EQ(parent_directory("/a/b"), "/a");
  EXPECT_EQ(parent_directory("/a"), "/");
  EXPECT_EQ(parent_directory("a"), ".");
}

}  // namespace
}  // namespace fathom
