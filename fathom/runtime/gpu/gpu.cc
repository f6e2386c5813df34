#include "fathom/runtime/gpu/gpu.h"

#include "fathom/base/hint.h"

namespace fathom {

Result<std::unique_ptr<Gpu>> Gpu::open(int ordinal, bool batch_invariant) {
  Result<DeviceInfo> info = use_cuda_device(ordinal);
  if (!info.ok()) {
    const std::string why = str_cat("--device cuda: ", info.status().message());
    const bool has_hint = without_hint(why).size() < why.size();
    return Status::error(info.status().code(),
                         str_cat(why, has_hint ? ", or " : kHintMark, "use --device cpu"));
  }
  FATHOM_ASSIGN(Stream stream, Stream::create());
  FATHOM_ASSIGN(SideStreams sides, SideStreams::create());
  return std::unique_ptr<Gpu>(
      new Gpu(std::move(info).value(), std::move(stream), std::move(sides), batch_invariant));
}

}  // namespace fathom
