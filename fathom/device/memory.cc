#include "fathom/device/memory.h"

#include <utility>

namespace fathom {

Buffer::Buffer(Buffer&& other) noexcept
    : host_(std::move(other.host_)),
      device_(std::move(other.device_)),
      pinned_(std::move(other.pinned_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  host_ = std::move(other.host_);
  device_ = std::move(other.device_);
  pinned_ = std::move(other.pinned_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

Result<Buffer> Buffer::allocate(DeviceKind kind, int64_t bytes, std::string_view what) {
  FATHOM_CHECK(bytes >= 0, "negative buffer size");
  Buffer buffer;
  if (kind == DeviceKind::kCpu) {
    Result<HostBuffer> host = huge_alloc(bytes);
    if (!host.ok()) return std::move(host).status().add_context(std::string(what));
    buffer.host_ = std::move(host).value();
    buffer.data_ = buffer.host_.data();
  } else if (bytes > 0) {
    Result<std::byte*> memory = internal::allocate_on_device(bytes);
    if (!memory.ok()) return std::move(memory).status().add_context(std::string(what));
    buffer.device_.reset(*memory);
    buffer.data_ = *memory;
  }
  buffer.size_ = bytes;
  return buffer;
}

Result<Buffer> Buffer::allocate_pinned(int64_t bytes, std::string_view what) {
  FATHOM_CHECK(bytes >= 0, "negative buffer size");
  Buffer buffer;
  if (bytes > 0) {
    Result<std::byte*> memory = internal::allocate_pinned(bytes);
    if (!memory.ok()) return std::move(memory).status().add_context(std::string(what));
    buffer.pinned_.reset(*memory);
    buffer.data_ = *memory;
  }
  buffer.size_ = bytes;
  return buffer;
}

}  // namespace fathom
