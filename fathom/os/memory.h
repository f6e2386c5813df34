// Host memory: large aligned buffers, and how much memory there is and was used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fathom/base/status.h"

namespace fathom {

inline constexpr int64_t kHugePageBytes = 2ll << 20;

/// An anonymous mapping. Move-only; unmapped with the object. The bytes start as zero.
class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  /// Null for an empty buffer, else aligned to kHugePageBytes.
  std::byte* data() const { return data_; }

  int64_t size() const { return size_; }

  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }

 private:
  friend Result<HostBuffer> huge_alloc(int64_t bytes);

  HostBuffer(std::byte* data, int64_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

/// Maps `bytes` >= 0 zeroed bytes, aligned to 2 MB, and asks for huge pages. Zero gives an empty
/// buffer. Errors: OutOfMemory with the bytes asked for and the bytes available.
Result<HostBuffer> huge_alloc(int64_t bytes);

/// Memory of this machine, or of the control group this process lives in, whichever is less.
struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  ///< what can be taken without swapping
};

/// Read afresh at each call. Zeros if the system does not tell.
HostMemory host_memory();

/// The most physical memory this process has held so far, in bytes.
int64_t peak_rss_bytes();

}  // namespace fathom
