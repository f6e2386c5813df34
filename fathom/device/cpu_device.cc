#include <utility>

#include "fathom/device/memory.h"

namespace fathom {

Result<Buffer> Buffer::allocate(DeviceKind kind, int64_t bytes, std::string_view what) {
  FATHOM_CHECK(bytes >= 0, "negative buffer size");
  if (kind != DeviceKind::kCpu) {
    return unsupported(str_cat("memory for ", what, ": this build has no CUDA backend"));
  }
  Result<HostBuffer> host = huge_alloc(bytes);
  if (!host.ok()) return std::move(host).status().add_context(std::string(what));
  Buffer buffer;
  buffer.host_ = std::move(host).value();
  return buffer;
}

}  // namespace fathom
