// Files and directories of the operating system, with errors that name the path and the reason.
// Paths are plain strings with '/' between parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

/// Whether the last component of a path may be a symbolic link.
enum class Symlinks { kFollow, kRefuse };

/// The error of a failed system call: "cannot open /a/b: No such file or directory". ENOENT and
/// ENOTDIR give NotFound, ELOOP (links in a circle) Corrupt, ENOMEM OutOfMemory, everything else
/// Io. It has the hint of errno_hint.
Status errno_status(std::string_view action,
                    std::string_view path,
                    int error,
                    const char* file = __builtin_FILE(),
                    int line = __builtin_LINE());

/// What helps where the system refused to read or write at `path`; empty where nothing is known to.
std::string errno_hint(std::string_view path, int error);

/// A regular file open for reading. Move-only; closed with the object.
class File {
 public:
  File() = default;
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Errors: NotFound; Corrupt for anything but a regular file and for a link that leads nowhere;
  /// InvalidArgument for a refused link and a path with a zero byte; Io.
  static Result<File> open(std::string path, Symlinks symlinks = Symlinks::kFollow);

  const std::string& path() const { return path_; }

  /// The open descriptor, still owned by this object.
  int descriptor() const { return fd_; }

  /// Bytes when it was opened.
  int64_t size() const { return size_; }

  /// Fills `dst` from `offset`. Thread-safe; does not move a position. Errors: Corrupt with the
  /// offset when the file ends first (it shrank or was cut), Io.
  Status read_at(int64_t offset, std::span<std::byte> dst) const;

 private:
  int fd_ = -1;
  int64_t size_ = 0;
  std::string path_;
};

/// The whole file. Errors: as File, and Corrupt when it is longer than max_bytes.
Result<std::string> read_file(const std::string& path,
                              int64_t max_bytes,
                              Symlinks symlinks = Symlinks::kFollow);

/// A file of /proc or /sys, whose size is not known before it is read; at most 1 MiB of it. Thread-
/// safe. Errors: NotFound, Io.
Result<std::string> read_kernel_file(const std::string& path);

enum class PathKind { kMissing, kFile, kDirectory, kOther };

/// What a path leads to, links followed. Whatever cannot be reached is missing.
PathKind path_kind(const std::string& path);

/// "a regular file", "a pipe", ...: what a mode of stat says that a file is.
std::string_view kind_in_words(mode_t mode);

/// Names in a directory, sorted by byte, without "." and "..". Errors: NotFound, Io; Corrupt when
/// there are more than a million.
Result<std::vector<std::string>> list_directory(const std::string& path);

/// Makes a directory and its missing parents.
Status make_directories(const std::string& path);

/// The error of make_directories, to be asked before work whose result goes there. What is missing
/// is made and taken away again.
Status check_make_directories(const std::string& path);

/// Removes a file. One that is not there is no error.
Status remove_file(const std::string& path);

/// Bytes a normal user may still write to the file system that holds `path`.
Result<int64_t> free_space_bytes(const std::string& path);

/// "dir/name"; just `name` if dir is empty.
std::string join_path(std::string_view dir, std::string_view name);

/// The part after the last '/'.
std::string_view base_name(std::string_view path);

/// The part before the last '/': "." if there is none, "/" for the root.
std::string parent_directory(std::string_view path);

}  // namespace fathom
