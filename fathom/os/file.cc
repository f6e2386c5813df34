#include "fathom/os/file.h"

#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/base/hint.h"
#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

constexpr size_t kMaxDirectoryEntries = 1'000'000;

// Reads until `size` bytes are there or the file ends; returns the number of bytes, or -errno.
int64_t read_fully(int fd, int64_t offset, std::byte* dst, int64_t size) {
  int64_t done = 0;
  while (done < size) {
    // Linux transfers at most 2 GiB a call; a smaller piece also lets signals through.
    const auto piece = static_cast<size_t>(std::min<int64_t>(size - done, 1ll << 30));
    const ssize_t got = pread(fd, dst + done, piece, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -errno;
    if (got == 0) break;
    done += got;
  }
  return done;
}

// A link whose target is gone is no absent file: a download or copy is incomplete.
bool is_dangling_link(const std::string& path) {
  struct stat info {};

  return lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
}

// The shortest part of a path, from its beginning, for which `holds`; the whole path if there is
// none.
template <class Holds>
std::string_view first_part(std::string_view path, const Holds& holds) {
  for (size_t end = 1; end < path.size(); ++end) {
    if (path[end] == '/' && holds(path_kind(std::string(path.substr(0, end))))) {
      return path.substr(0, end);
    }
  }
  return path;
}

std::string hint_of_missing(std::string_view path) {
  const std::string_view missing =
      first_part(path, [](PathKind kind) { return kind == PathKind::kMissing; });
  if (missing.size() < path.size()) return str_cat(missing, " is not there either");
  if (path.starts_with('/'))
    return str_cat("`ls ", parent_directory(path), "` shows what is there");
  return "the path is taken from the current directory; `ls` shows what is there";
}

// In place of a file: a directory, a pipe, a device.
Status no_regular_file(const std::string& path, mode_t mode) {
  return with_hint(
      corrupt(str_cat(path, ": is ", kind_in_words(mode), ", expected a regular file")),
      S_ISDIR(mode) ? "name a file in it, or put the file in its place"
                    : "name a file, or put one in its place");
}

}  // namespace

std::string errno_hint(std::string_view path, int error) {
  switch (error) {
    case ENOENT:
      return hint_of_missing(path);
    case ENOTDIR:
      return str_cat(first_part(path, [](PathKind kind) { return kind != PathKind::kDirectory; }),
                     " is no directory");
    case EACCES:
    case EPERM:
      return "`namei -l` with that path shows which permission this user lacks";
    case EISDIR:
      return "name a file in it";
    case ELOOP:
      return "`namei` with that path shows the links; make them lead to a file";
    case ENAMETOOLONG:
      return "a name may have 255 bytes, a path 4095";
    case ENXIO:
      return "it is a socket or a device; name a file";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n)";
    case ENOMEM:
      return "free some memory, or raise the limit of the shell (ulimit -v)";
    case ENOSPC:
    case EDQUOT:
      return "free some space there, or write elsewhere";
    case EFBIG:
      return "the shell limits the size of files (ulimit -f)";
    case EROFS:
      return "that file system is mounted to be read only; write elsewhere";
    case EIO:
      return "the disk or the network behind it fails; `dmesg` may say more";
    case ESTALE:
      return "the network file system has lost it; mount it again";
    default:
      return {};
  }
}

Status errno_status(
    std::string_view action, std::string_view path, int error, const char* file, int line) {
  StatusCode code = StatusCode::kIo;
  if (error == ENOENT || error == ENOTDIR) code = StatusCode::kNotFound;
  if (error == ELOOP) code = StatusCode::kCorrupt;
  if (error == ENOMEM) code = StatusCode::kOutOfMemory;
  return with_hint(
      Status::error(
          code, str_cat("cannot ", action, " ", path, ": ", std::generic_category().message(error)),
          file, line),
      errno_hint(path, error), file, line);
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept {
  *this = std::move(other);
}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

Result<File> File::open(std::string path, Symlinks symlinks) {
  if (path.find('\0') != std::string::npos) {
    return invalid_argument("a path holds a zero byte");
  }
  // Without O_NONBLOCK, opening a pipe waits for a writer.
  const int no_follow = symlinks == Symlinks::kRefuse ? O_NOFOLLOW : 0;
  File file;
  do {
    file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | no_follow);
  } while (file.fd_ < 0 && errno == EINTR);
  if (file.fd_ < 0 && errno == ELOOP && symlinks == Symlinks::kRefuse) {
    return with_hint(
        invalid_argument(str_cat(
            path, ": is a symbolic link, expected a regular file (links are refused here)")),
        "put the file itself in its place");
  }
  if (file.fd_ < 0 && errno == ENOENT && is_dangling_link(path)) {
    return with_hint(corrupt(str_cat(path, ": is a symbolic link to a file that is not there")),
                     "fetch the file that it leads to, or make the link anew");
  }
  if (file.fd_ < 0) return errno_status("open", path, errno);

  struct stat info {};

  if (fstat(file.fd_, &info) != 0) return errno_status("examine", path, errno);
  if (!S_ISREG(info.st_mode)) return no_regular_file(path, info.st_mode);
  file.size_ = info.st_size;
  file.path_ = std::move(path);
  return file;
}

Status File::read_at(int64_t offset, std::span<std::byte> dst) const {
  const auto size = static_cast<int64_t>(dst.size());
  FATHOM_CHECK(fd_ >= 0 && offset >= 0, "read from a closed file or a negative offset");
  FATHOM_CHECK(checked_add(offset, size).has_value(), "read beyond the largest offset");
  const int64_t got = read_fully(fd_, offset, dst.data(), size);
  if (got < 0) {
    return errno_status(str_cat("read ", size, " bytes at offset ", offset, " of"), path_,
                        static_cast<int>(-got));
  }
  if (got < size) {
    return with_hint(corrupt(str_cat(path_, ": ends at byte ", offset + got, ", expected ", size,
                                     " bytes at offset ", offset)),
                     "it was cut while it was read; try again when nothing writes it");
  }
  return {};
}

Result<std::string> read_file(const std::string& path, int64_t max_bytes, Symlinks symlinks) {
  FATHOM_ASSIGN(const File file, File::open(path, symlinks));
  if (file.size() > max_bytes) {
    return corrupt(
        str_cat(path, ": is ", file.size(), " bytes long, expected at most ", max_bytes));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  FATHOM_TRY(file.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<std::string> read_kernel_file(const std::string& path) {
  constexpr int64_t kMaxBytes = 1 << 20;
  FATHOM_ASSIGN(const File file, File::open(path));
  std::string text(kMaxBytes, '\0');
  const int64_t got =
      read_fully(file.descriptor(), 0, reinterpret_cast<std::byte*>(text.data()), kMaxBytes);
  if (got < 0) return errno_status("read", path, static_cast<int>(-got));
  text.resize(static_cast<size_t>(got));
  return text;
}

PathKind path_kind(const std::string& path) {
  struct stat info {};

  if (stat(path.c_str(), &info) != 0) return PathKind::kMissing;
  if (S_ISREG(info.st_mode)) return PathKind::kFile;
  if (S_ISDIR(info.st_mode)) return PathKind::kDirectory;
  return PathKind::kOther;
}

std::string_view kind_in_words(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISLNK(mode)) return "a symbolic link";
  return "a device";
}

Result<std::vector<std::string>> list_directory(const std::string& path) {
  const auto close_directory = [](DIR* handle) { closedir(handle); };
  const std::unique_ptr<DIR, decltype(close_directory)> directory(opendir(path.c_str()),
                                                                  close_directory);
  if (directory == nullptr) return errno_status("list", path, errno);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(directory.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (names.size() == kMaxDirectoryEntries) {
      return with_hint(corrupt(str_cat(path, ": holds more than ", kMaxDirectoryEntries, " files")),
                       "name a directory with those files alone that are needed");
    }
    names.emplace_back(name);
  }
  if (errno != 0) return errno_status("list", path, errno);
  std::sort(names.begin(), names.end());
  return names;
}

Status make_directories(const std::string& path) {
  // Every prefix that ends before a '/', then the whole.
  for (size_t end = 1; end <= path.size(); ++end) {
    if (end < path.size() && path[end] != '/') continue;
    const std::string prefix = path.substr(0, end);
    if (mkdir(prefix.c_str(), 0755) == 0 || errno == EEXIST) continue;
    // Io whatever the number: NotFound speaks of inputs.
    return io_error(errno_status("make directory", prefix, errno).message());
  }
  if (path_kind(path) == PathKind::kDirectory) return {};
  return with_hint(
      io_error(str_cat("cannot make directory ", path, ": a file of that name exists")),
      "choose another directory or delete it");
}

Status check_make_directories(const std::string& path) {
  std::vector<std::string> missing;  // the innermost first
  for (std::string at = path; path_kind(at) == PathKind::kMissing; at = parent_directory(at))
    missing.push_back(at);
  Status status = make_directories(path);
  // Takes away nothing that holds something: rmdir refuses that.
  for (const std::string& made : missing)
    ::rmdir(made.c_str());
  return status;
}

Status remove_file(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return errno_status("remove", path, errno);
}

Result<int64_t> free_space_bytes(const std::string& path) {
  struct statvfs info {};

  if (statvfs(path.c_str(), &info) != 0) return errno_status("examine the disk of", path, errno);
  const auto blocks = static_cast<int64_t>(info.f_bavail);
  return checked_mul(blocks, static_cast<int64_t>(info.f_frsize)).value_or(INT64_MAX);
}

std::string join_path(std::string_view dir, std::string_view name) {
  if (dir.empty()) return std::string(name);
  return dir.back() == '/' ? str_cat(dir, name) : str_cat(dir, '/', name);
}

std::string_view base_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string parent_directory(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

}  // namespace fathom
