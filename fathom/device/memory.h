// Owning memory of a device. On the CPU: aligned, in huge pages where the system gives them. On a
// GPU: its own memory, or host memory that it copies from and to without a detour.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fathom/base/status.h"
#include "fathom/os/memory.h"

namespace fathom {

enum class DeviceKind : uint8_t { kCpu, kCuda };

namespace internal {

struct FreeOnDevice {
  void operator()(std::byte* p) const;
};

struct FreePinned {
  void operator()(std::byte* p) const;
};

}  // namespace internal

/// A block of memory. Move-only; freed with the object. The bytes start as zero.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  /// Zero bytes give an empty buffer. GPU memory is that of the device chosen by use_cuda_device,
  /// aligned to 256 bytes; only the device may touch it.
  /// Errors: OutOfMemory with the size and what it was for; Unavailable without a GPU.
  static Result<Buffer> allocate(DeviceKind kind, int64_t bytes, std::string_view what);

  /// Host memory that never leaves its place, so that copies between it and a GPU run beside other
  /// work. Errors: as allocate of GPU memory.
  static Result<Buffer> allocate_pinned(int64_t bytes, std::string_view what);

  std::byte* data() const { return data_; }

  int64_t size() const { return size_; }

  /// True for memory that the host cannot read.
  bool on_device() const { return device_ != nullptr; }

 private:
  HostBuffer host_;
  std::unique_ptr<std::byte, internal::FreeOnDevice> device_;
  std::unique_ptr<std::byte, internal::FreePinned> pinned_;
  std::byte* data_ = nullptr;  // of whichever of the three is there
  int64_t size_ = 0;
};

namespace internal {

// What the files of a backend provide.
Result<std::byte*> allocate_on_device(int64_t bytes);
Result<std::byte*> allocate_pinned(int64_t bytes);

}  // namespace internal
}  // namespace fathom
