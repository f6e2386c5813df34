#include "fathom/device/memory.h"

#include <utility>

#include "fathom/base/hint.h"

namespace fathom {
namespace {

// Why there is no memory, for whom it was and, where it is short, what helps.
Status refused(Status status, std::string_view what, std::string_view hint) {
  status = std::move(status).add_context(std::string(what));
  if (status.code() != StatusCode::kOutOfMemory) return status;
  return with_hint(std::move(status), hint);
}

constexpr std::string_view kShorter =
    "lower --max-model-len or --max-num-seqs, or end what else holds memory there";

}  // namespace

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
    if (!host.ok()) return refused(std::move(host).status(), what, kShorter);
    buffer.host_ = std::move(host).value();
    buffer.data_ = buffer.host_.data();
  } else if (bytes > 0) {
    Result<std::byte*> memory = internal::allocate_on_device(bytes);
    if (!memory.ok()) return refused(std::move(memory).status(), what, kShorter);
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
    if (!memory.ok()) {
      return refused(std::move(memory).status(), what,
                     "pinned memory is the host's: end what else holds memory there, or raise the "
                     "limit of the container");
    }
    buffer.pinned_.reset(*memory);
    buffer.data_ = *memory;
  }
  buffer.size_ = bytes;
  return buffer;
}

}  // namespace fathom
