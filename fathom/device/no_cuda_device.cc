// Linked instead of cuda_device.cc when the CUDA backend is off: no devices, one clear line.
#include "fathom/device/cuda_build.h"
#include "fathom/device/device.h"
#include "fathom/device/graph.h"
#include "fathom/device/stream.h"

namespace fathom {
namespace {

Status no_backend() {
  return unavailable(
      "this build of fathom has no CUDA backend\nhint: build it with -DFATHOM_CUDA=ON where nvcc "
      "is installed");
}

}  // namespace

bool cuda_is_built() {
  return false;
}

CudaBuild cuda_build() {
  return {};
}

int cuda_driver_version() {
  return 0;
}

Result<std::vector<DeviceInfo>> cuda_devices() {
  return no_backend();
}

Result<DeviceInfo> use_cuda_device(int /*ordinal*/) {
  return no_backend();
}

Result<int64_t> cuda_free_bytes() {
  return no_backend();
}

Status synchronize_device() {
  return no_backend();
}

Result<Event> Event::create() {
  return no_backend();
}

Status Event::record(Stream& /*stream*/) {
  return no_backend();
}

Status Event::record_in_graph(Stream& /*stream*/) {
  return no_backend();
}

Status Event::synchronize() {
  return no_backend();
}

Result<double> Event::us_since(const Event& /*earlier*/) const {
  return no_backend();
}

Result<Stream> Stream::create() {
  return no_backend();
}

Status Stream::synchronize() {
  return no_backend();
}

Status Stream::wait(const Event& /*event*/) {
  return no_backend();
}

Status Stream::copy(void* /*to*/, const void* /*from*/, int64_t /*bytes*/) {
  return no_backend();
}

Status Stream::fill(void* /*to*/, int /*byte*/, int64_t /*bytes*/) {
  return no_backend();
}

Result<Graph> Graph::capture(Stream& /*stream*/, const std::function<Status()>& /*record*/) {
  return no_backend();
}

Status Graph::replay(Stream& /*stream*/) {
  return no_backend();
}

namespace internal {

Result<std::byte*> allocate_on_device(int64_t /*bytes*/) {
  return no_backend();
}

Result<std::byte*> allocate_pinned(int64_t /*bytes*/) {
  return no_backend();
}

// Nothing was ever made that these could free.
void FreeOnDevice::operator()(std::byte* /*p*/) const {}

void FreePinned::operator()(std::byte* /*p*/) const {}

void DestroyStream::operator()(void* /*stream*/) const {}

void DestroyEvent::operator()(void* /*event*/) const {}

void DestroyGraph::operator()(void* /*graph*/) const {}

}  // namespace internal
}  // namespace fathom
