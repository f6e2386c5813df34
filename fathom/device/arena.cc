#include "fathom/device/arena.h"

namespace fathom {

Status Arena::exhausted(int64_t bytes) const {
  return out_of_memory(str_cat("arena of ", buffer_.size(), " bytes has ", buffer_.size() - used_,
                               " left, but ", bytes, " are needed"));
}

Result<View> Arena::tensor(std::initializer_list<int64_t> dims, Format format, const char* axes) {
  View v = make_view(nullptr, dims, format, axes);
  FATHOM_ASSIGN(v.data, take(v.numel() * element_bytes(format)));
  v.on_device = on_device();
  return v;
}

}  // namespace fathom
