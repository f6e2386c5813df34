#include "fathom/runtime/gpu/gpu.h"

#include "fathom/base/hint.h"

namespace fathom {

Result<std::unique_ptr<Gpu>> Gpu::open(int ordinal) {
  Result<DeviceInfo> info = use_cuda_device(ordinal);
  if (!info.ok()) {
    Status refused =
        Status::error(info.status().code(), str_cat("--device cuda: ", info.status().message()));
    return with_hint(std::move(refused), "--device cpu needs no GPU");
  }
  FATHOM_ASSIGN(Stream stream, Stream::create());
  FATHOM_ASSIGN(SideStream side, SideStream::create());
  return std::unique_ptr<Gpu>(new Gpu(std::move(info).value(), std::move(stream), std::move(side)));
}

}  // namespace fathom
