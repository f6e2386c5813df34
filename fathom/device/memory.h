// Owning memory of a device. On the CPU: aligned, in huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fathom/base/status.h"
#include "fathom/os/memory.h"

namespace fathom {

enum class DeviceKind : uint8_t { kCpu, kCuda };

/// A block of memory. Move-only; freed with the object. The bytes start as zero.
class Buffer {
 public:
  /// Zero bytes give an empty buffer. Errors: OutOfMemory with the size and what it was for.
  static Result<Buffer> allocate(DeviceKind kind, int64_t bytes, std::string_view what);

  std::byte* data() const { return host_.data(); }

  int64_t size() const { return host_.size(); }

 private:
  HostBuffer host_;
};

}  // namespace fathom
