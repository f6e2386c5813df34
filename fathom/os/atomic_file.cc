#include "fathom/os/atomic_file.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <optional>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "fathom/base/fail_point.h"
#include "fathom/base/hint.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"

namespace fathom {
namespace {

constexpr size_t kPendingBytes = 1 << 20;

// Attempts to take a lock file whose owner keeps vanishing.
constexpr int kMaxAttempts = 16;

// Links that one path may lead through; the limit of Linux.
constexpr int kMaxLinks = 40;

// An error of a write is Io whatever its number: NotFound and OutOfMemory speak of inputs.
Status write_error(std::string_view action, std::string_view path, int error) {
  Status status = io_error(errno_status(action, path, error).message());
  if (error != ENOENT) return status;
  return with_hint_instead(std::move(status), "the directory of that file must be there");
}

// What a link says, or nothing for whatever is no link.
std::optional<std::string> read_link(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t size = readlink(path.c_str(), text, sizeof text);
  if (size < 0) return std::nullopt;
  return std::string(text, static_cast<size_t>(size));
}

// Zero, or errno.
int write_fully(int fd, const char* data, size_t size) {
  while (size > 0) {
    if (FATHOM_FAIL_POINT("atomic_file.write")) return ENOSPC;
    const ssize_t put = ::write(fd, data, std::min<size_t>(size, 1u << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    if (put == 0) return EIO;
    data += put;
    size -= static_cast<size_t>(put);
  }
  return 0;
}

int sync_directory(const std::string& path) {
  if (FATHOM_FAIL_POINT("atomic_file.sync_directory")) return EIO;
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  const int error = fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some network file systems cannot sync a directory; the rename is as safe there as it gets.
  return error == EINVAL ? 0 : error;
}

// Whether the path still leads to the open file.
bool is_same_file(int fd, const std::string& path) {
  struct stat open_file {};

  struct stat named {};

  return fstat(fd, &open_file) == 0 && lstat(path.c_str(), &named) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

// Opens and locks `path`. With `fresh`, a file that nobody holds is deleted and made anew. Returns
// the descriptor, or -errno; EWOULDBLOCK when another process holds it.
int open_locked(const std::string& path, bool fresh, int mode) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    const bool is_ours = fd >= 0;
    if (!is_ours && errno != EEXIST) return -errno;
    if (!is_ours) fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) continue;  // its owner finished in between
    if (fd < 0) return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(fd);
      return -error;
    }
    // Between opening and locking, the owner before us may have removed or renamed the file.
    if (is_same_file(fd, path)) {
      if (is_ours || !fresh) return fd;
      ::unlink(path.c_str());
    }
    ::close(fd);
  }
  return -EWOULDBLOCK;
}

}  // namespace

Result<std::string> output_target(const std::string& path) {
  struct stat info {};

  // The system follows the links first: it refuses some that a reader of links would follow, such
  // as those of other users in /tmp.
  const int error = stat(path.c_str(), &info) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(info.st_mode)) {
    return with_hint(io_error(str_cat("cannot write ", path, ": is ", kind_in_words(info.st_mode),
                                      ", expected a regular file or a new name")),
                     "choose another name");
  }
  std::string target = path;
  for (int links = 0; links <= kMaxLinks; ++links) {
    const std::optional<std::string> next = read_link(target);
    if (!next) return target;
    if (error != 0 && error != ENOENT) return write_error("write", path, error);
    target = next->starts_with('/') ? *next : join_path(parent_directory(target), *next);
  }
  return write_error("write", path, ELOOP);
}

AtomicFile::~AtomicFile() {
  abandon();
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept {
  *this = std::move(other);
}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(written_, other.written_);
  std::swap(reserved_, other.reserved_);
  std::swap(path_, other.path_);
  std::swap(partial_, other.partial_);
  std::swap(pending_, other.pending_);
  return *this;
}

Result<AtomicFile> AtomicFile::create(const std::string& path, const AtomicFileOptions& options) {
  AtomicFile file;
  FATHOM_ASSIGN(file.path_, output_target(path));
  file.partial_ = str_cat(file.path_, kPartialSuffix);
  const int fd = FATHOM_FAIL_POINT("atomic_file.create")
                     ? -EACCES
                     : open_locked(file.partial_, /*fresh=*/true, options.mode);
  if (fd == -EWOULDBLOCK) {
    return with_hint(
        io_error(str_cat("cannot write ", file.path_, ": another process is writing it")),
        "wait until that one has ended, or write elsewhere");
  }
  // The file that was asked for is named, not the one beside it.
  if (fd < 0) return write_error("create", file.path_, -fd);
  file.fd_ = fd;
  FATHOM_TRY(file.reserve(options.reserve_bytes));
  return file;
}

Status AtomicFile::reserve(int64_t bytes) {
  if (bytes <= 0) return {};
  int error = FATHOM_FAIL_POINT("atomic_file.reserve") ? ENOSPC : 0;
  while (error == 0 && fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, bytes) != 0) {
    if (errno == EINTR) continue;
    // A file system that cannot reserve is asked for its free space instead.
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;
    error = errno;
  }
  const Result<int64_t> free = free_space_bytes(parent_directory(path_));
  if (error == 0 && free.ok() && *free < bytes) {
    struct stat info {};

    const bool has_blocks = fstat(fd_, &info) == 0 && int64_t{info.st_blocks} * 512 >= bytes;
    if (!has_blocks) error = ENOSPC;
  }
  if (error == 0) {
    reserved_ = bytes;
    return {};
  }
  Status status = fail(str_cat("reserve ", bytes, " bytes for"), error);
  if (!free.ok()) return status;
  const std::string message = status.message();
  const std::string_view wrong = without_hint(message);
  return io_error(str_cat(wrong, " (", *free, " bytes are free)",
                          std::string_view(message).substr(wrong.size())));
}

Status AtomicFile::append(std::span<const std::byte> data) {
  return append(std::string_view(reinterpret_cast<const char*>(data.data()), data.size()));
}

Status AtomicFile::append(std::string_view text) {
  if (fd_ < 0) return io_error(str_cat("cannot write ", path_, ": it was abandoned"));
  if (pending_.size() + text.size() > kPendingBytes) FATHOM_TRY(flush());
  if (text.size() >= kPendingBytes) {
    if (const int error = write_fully(fd_, text.data(), text.size()); error != 0) {
      return fail("write", error);
    }
  } else {
    pending_.append(text);
  }
  written_ += static_cast<int64_t>(text.size());
  return {};
}

Status AtomicFile::flush() {
  const int error = write_fully(fd_, pending_.data(), pending_.size());
  pending_.clear();
  return error == 0 ? Status{} : fail("write", error);
}

Status AtomicFile::commit() {
  if (fd_ < 0) return io_error(str_cat("cannot write ", path_, ": it was abandoned"));
  FATHOM_TRY(flush());
  // Gives back what was reserved beyond the end.
  if (reserved_ > written_ && ftruncate(fd_, written_) != 0) return fail("cut", errno);
  if (FATHOM_FAIL_POINT("atomic_file.sync")) return fail("sync", EIO);
  if (fsync(fd_) != 0) return fail("sync", errno);
  if (FATHOM_FAIL_POINT("atomic_file.rename")) return fail("rename", EIO);
  if (rename(partial_.c_str(), path_.c_str()) != 0) return fail("rename", errno);
  const int closed = ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno;
  if (closed != 0) return write_error("close", path_, closed);
  const int synced = sync_directory(parent_directory(path_));
  if (synced != 0) return write_error("sync the directory of", path_, synced);
  return {};
}

Status AtomicFile::fail(std::string_view action, int error) {
  abandon();
  return write_error(action, path_, error);
}

void AtomicFile::abandon() {
  if (fd_ < 0) return;
  ::unlink(partial_.c_str());
  ::close(std::exchange(fd_, -1));
  pending_.clear();
}

Status write_file(const std::string& path,
                  std::string_view content,
                  const AtomicFileOptions& options) {
  FATHOM_ASSIGN(AtomicFile file, AtomicFile::create(path, options));
  FATHOM_TRY(file.append(content));
  return file.commit();
}

Status check_writable(const std::string& path) {
  return AtomicFile::create(path).status();
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept {
  *this = std::move(other);
}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

Result<AppendFile> AppendFile::open(std::string path, int64_t keep_bytes) {
  AppendFile file;
  file.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file.fd_ < 0) return write_error("open", path, errno);
  if (ftruncate(file.fd_, keep_bytes) != 0) return write_error("cut", path, errno);
  if (fsync(file.fd_) != 0) return write_error("sync", path, errno);
  const int synced = sync_directory(parent_directory(path));
  if (synced != 0) return write_error("sync the directory of", path, synced);
  file.path_ = std::move(path);
  return file;
}

Status AppendFile::append_line(std::string_view line) {
  FATHOM_CHECK(fd_ >= 0, "a line for a closed file");
  const std::string text = str_cat(line, '\n');
  const int error = write_fully(fd_, text.data(), text.size());
  if (error != 0) return write_error("write", path_, error);
  if (FATHOM_FAIL_POINT("append_file.sync")) return write_error("sync", path_, EIO);
  if (fdatasync(fd_) != 0) return write_error("sync", path_, errno);
  return {};
}

DirectoryLock::~DirectoryLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());
  ::close(fd_);
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept {
  *this = std::move(other);
}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

Result<DirectoryLock> DirectoryLock::acquire(const std::string& directory) {
  DirectoryLock lock;
  lock.path_ = join_path(directory, kFileName);
  const int fd = open_locked(lock.path_, /*fresh=*/false, 0644);
  if (fd == -EWOULDBLOCK) {
    return with_hint(
        io_error(str_cat("cannot lock ", directory, ": another process is writing to it")),
        "wait until that one has ended, or write elsewhere");
  }
  if (fd < 0) return write_error("create", lock.path_, -fd);
  lock.fd_ = fd;
  return lock;
}

}  // namespace fathom
