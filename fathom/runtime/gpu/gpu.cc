#include "fathom/runtime/gpu/gpu.h"

namespace fathom {

Result<std::unique_ptr<Gpu>> Gpu::open(int ordinal) {
  Result<DeviceInfo> info = use_cuda_device(ordinal);
  if (!info.ok()) {
    const char* otherwise = cuda_is_built() ? "; --device cpu needs none" : "; or use --device cpu";
    return Status::error(info.status().code(),
                         str_cat("--device cuda: ", info.status().message(), otherwise));
  }
  FATHOM_ASSIGN(Stream stream, Stream::create());
  FATHOM_ASSIGN(SideStream side, SideStream::create());
  return std::unique_ptr<Gpu>(new Gpu(std::move(info).value(), std::move(stream), std::move(side)));
}

}  // namespace fathom
