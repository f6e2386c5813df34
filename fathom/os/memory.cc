#include "fathom/os/memory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/resource.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"

namespace fathom {
namespace {

constexpr int64_t kSmallPageBytes = 4096;

int64_t mapped_bytes(int64_t size) {
  return align_up(size, kSmallPageBytes);
}

// The number after `key` in a file of "Key:   123 kB" lines, in bytes; -1 if there is none.
int64_t kilobytes_after(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  if (at == std::string_view::npos) return -1;
  at = text.find_first_of("0123456789", at + key.size());
  if (at == std::string_view::npos) return -1;
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (parsed.ec != std::errc{}) return -1;
  return checked_mul<int64_t>(value, 1024).value_or(-1);
}

// The number in a file that holds nothing else; -1 if it holds something else ("max").
int64_t number_in(const std::string& path) {
  const Result<std::string> text = read_kernel_file(path);
  if (!text.ok()) return -1;
  int64_t value = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), value);
  return parsed.ec == std::errc{} ? value : -1;
}

}  // namespace

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(mapped_bytes(size_)));
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept {
  *this = std::move(other);
}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Result<HostBuffer> huge_alloc(int64_t bytes) {
  FATHOM_CHECK(bytes >= 0, "negative buffer size");
  if (bytes == 0) return HostBuffer{};
  const auto refuse = [bytes](int error) {
    return out_of_memory(str_cat("cannot allocate ", bytes,
                                 " bytes of host memory: ", std::generic_category().message(error),
                                 " (", host_memory().available_bytes, " bytes available)"));
  };
  // Mappings are aligned to small pages only: take one huge page more and give the ends back.
  if (bytes > INT64_MAX - 2 * kHugePageBytes) return refuse(ENOMEM);
  const int64_t kept = mapped_bytes(bytes);
  const int64_t taken = kept + kHugePageBytes;
  void* base = mmap(nullptr, static_cast<size_t>(taken), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return refuse(errno);
  const auto address = reinterpret_cast<int64_t>(base);
  const int64_t head = align_up(address, kHugePageBytes) - address;
  std::byte* begin = static_cast<std::byte*>(base) + head;
  if (head > 0) munmap(base, static_cast<size_t>(head));
  if (const int64_t tail = taken - head - kept; tail > 0) {
    munmap(begin + kept, static_cast<size_t>(tail));
  }
  if (kept >= kHugePageBytes) madvise(begin, static_cast<size_t>(kept), MADV_HUGEPAGE);
  return HostBuffer(begin, bytes);
}

HostMemory host_memory() {
  HostMemory memory;
  const Result<std::string> text = read_kernel_file("/proc/meminfo");
  if (!text.ok()) return memory;
  memory.total_bytes = std::max<int64_t>(0, kilobytes_after(*text, "MemTotal:"));
  memory.available_bytes = std::max<int64_t>(0, kilobytes_after(*text, "MemAvailable:"));
  // A container sees the machine in /proc/meminfo and its own limit here.
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const int64_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit >= 0 && limit < memory.total_bytes) {
    memory.total_bytes = limit;
    memory.available_bytes =
        std::min(memory.available_bytes, std::max<int64_t>(0, limit - std::max<int64_t>(0, used)));
  }
  return memory;
}

int64_t peak_rss_bytes() {
  // getrusage() also counts what the process was before exec, so it is the second choice.
  const Result<std::string> text = read_kernel_file("/proc/self/status");
  const int64_t peak = text.ok() ? kilobytes_after(*text, "VmHWM:") : -1;
  if (peak >= 0) return peak;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace fathom
