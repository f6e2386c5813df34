#include <algorithm>
#include <utility>

#include <cuda_runtime_api.h>

#include "fathom/device/cuda_build.h"
#include "fathom/device/cuda_status.h"
#include "fathom/device/device.h"
#include "fathom/device/graph.h"
#include "fathom/device/stream.h"

namespace fathom {
namespace {

// The architectures that kernels were compiled for; their code runs on no other.
constexpr int kBuiltFor[] = {FATHOM_CUDA_SMS};

bool is_built_for(int sm) {
  return std::find(std::begin(kBuiltFor), std::end(kBuiltFor), sm) != std::end(kBuiltFor);
}

bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

bool is_missing(cudaError_t error) {
  switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
      return true;
    default:
      return false;
  }
}

Result<DeviceInfo> describe_device(int ordinal) {
  cudaDeviceProp p{};
  FATHOM_TRY(cuda_status(cudaGetDeviceProperties(&p, ordinal), str_cat("GPU ", ordinal)));
  DeviceInfo info;
  info.ordinal = ordinal;
  info.name = p.name;
  info.sm = 10 * p.major + p.minor;
  info.num_sms = p.multiProcessorCount;
  info.total_bytes = static_cast<int64_t>(p.totalGlobalMem);
  info.l2_bytes = p.l2CacheSize;
  info.shared_bytes = static_cast<int64_t>(p.sharedMemPerBlockOptin);
  info.shared_sm_bytes = static_cast<int64_t>(p.sharedMemPerMultiprocessor);
  int khz = 0;
  if (cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, ordinal) == cudaSuccess) {
    info.clock_mhz = khz / 1000;
  }
  FATHOM_TRY(cuda_status(cudaDriverGetVersion(&info.driver_version), "driver version"));
  FATHOM_TRY(cuda_status(cudaRuntimeGetVersion(&info.runtime_version), "runtime version"));
  return info;
}

cudaStream_t as_stream(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

/// Zeroes memory that was just made; nothing else uses it yet.
Status zero(std::byte* memory, int64_t bytes) {
  FATHOM_TRY(cuda_status(cudaMemset(memory, 0, static_cast<size_t>(bytes)), "zeroing memory"));
  return cuda_status(cudaStreamSynchronize(nullptr), "zeroing memory");
}

}  // namespace

Status cuda_error(cudaError_t error, std::string_view what, const char* file, int line) {
  cudaGetLastError();  // errors that are not sticky must not show again at the next call
  StatusCode code = StatusCode::kInternal;
  if (error == cudaErrorMemoryAllocation) code = StatusCode::kOutOfMemory;
  if (is_missing(error)) code = StatusCode::kUnavailable;
  if (is_sticky(error)) code = StatusCode::kDeviceLost;
  return Status::error(
      code, str_cat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"),
      file, line);
}

namespace {

/// Why there is no device, in words.
std::string why_none(cudaError_t error) {
  const int driver = cuda_driver_version();
  if (driver == 0) return "there is no NVIDIA driver";
  if (error == cudaErrorInsufficientDriver) {
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    return str_cat("its driver is for CUDA ", driver / 1000, ".", driver % 1000 / 10,
                   ", this build needs ", runtime / 1000, ".", runtime % 1000 / 10);
  }
  return error == cudaSuccess ? "the driver lists none" : cudaGetErrorString(error);
}

}  // namespace

bool cuda_is_built() {
  return true;
}

CudaBuild cuda_build() {
  return {.runtime_version = CUDART_VERSION,
          .sms = std::vector<int>(std::begin(kBuiltFor), std::end(kBuiltFor))};
}

int cuda_driver_version() {
  int driver = 0;
  return cudaDriverGetVersion(&driver) == cudaSuccess ? driver : 0;
}

Result<std::vector<DeviceInfo>> cuda_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return unavailable(str_cat("no usable GPU on this machine: ", why_none(error)));
  }
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    FATHOM_ASSIGN(DeviceInfo info, describe_device(i));
    devices.push_back(std::move(info));
  }
  return devices;
}

Result<DeviceInfo> use_cuda_device(int ordinal) {
  FATHOM_ASSIGN(const std::vector<DeviceInfo> devices, cuda_devices());
  if (ordinal < 0 || ordinal >= static_cast<int>(devices.size())) {
    return unavailable(str_cat("there is no GPU ", ordinal, ", only 0 to ", devices.size() - 1));
  }
  const DeviceInfo& info = devices[static_cast<size_t>(ordinal)];
  if (!is_built_for(info.sm)) {
    return unavailable(str_cat("GPU ", ordinal, " (", info.name, ") is sm_", info.sm,
                               ", but the kernels of this build are for sm_", kBuiltFor[0]));
  }
  FATHOM_TRY(cuda_status(cudaSetDevice(ordinal), str_cat("GPU ", ordinal)));
  return info;
}

Result<int64_t> cuda_free_bytes() {
  size_t free = 0;
  size_t total = 0;
  FATHOM_TRY(cuda_status(cudaMemGetInfo(&free, &total), "GPU memory"));
  return static_cast<int64_t>(free);
}

Status synchronize_device() {
  return cuda_status(cudaDeviceSynchronize(), "waiting for the GPU");
}

// ---- streams and events ----

Result<Stream> Stream::create() {
  constexpr int64_t kBytes = kCounters * sizeof(uint32_t);
  FATHOM_ASSIGN(Buffer counters,
                Buffer::allocate(DeviceKind::kCuda, kBytes, "the counters of a stream"));
  cudaStream_t stream = nullptr;
  FATHOM_TRY(cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream"));
  return Stream(stream, std::move(counters));
}

Status Stream::synchronize() {
  return cuda_status(cudaStreamSynchronize(as_stream(*this)), "waiting for the GPU");
}

Status Stream::wait(const Event& event) {
  return cuda_status(
      cudaStreamWaitEvent(as_stream(*this), static_cast<cudaEvent_t>(event.event_.get())),
      "waiting for an event");
}

Status Stream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return {};
  return cuda_status(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, as_stream(*this)),
      "copying memory");
}

Status Stream::fill(void* to, int byte, int64_t bytes) {
  if (bytes == 0) return {};
  return cuda_status(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), as_stream(*this)),
                     "filling memory");
}

Result<Event> Event::create() {
  cudaEvent_t event = nullptr;
  FATHOM_TRY(cuda_status(cudaEventCreate(&event), "an event"));
  return Event(event);
}

Status Event::record(Stream& stream) {
  return cuda_status(cudaEventRecord(static_cast<cudaEvent_t>(event_.get()), as_stream(stream)),
                     "recording an event");
}

Status Event::record_in_graph(Stream& stream) {
  return cuda_status(cudaEventRecordWithFlags(static_cast<cudaEvent_t>(event_.get()),
                                              as_stream(stream), cudaEventRecordExternal),
                     "recording an event in a graph");
}

Status Event::synchronize() {
  return cuda_status(cudaEventSynchronize(static_cast<cudaEvent_t>(event_.get())),
                     "waiting for the GPU");
}

Result<double> Event::us_since(const Event& earlier) const {
  float ms = 0;
  FATHOM_TRY(cuda_status(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(earlier.event_.get()),
                                              static_cast<cudaEvent_t>(event_.get())),
                         "time between events"));
  return double{ms} * 1e3;
}

// ---- graphs ----

Result<Graph> Graph::capture(Stream& stream, const std::function<Status()>& record) {
  FATHOM_TRY(cuda_status(
      cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal), "a graph"));
  Status recorded = record();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(as_stream(stream), &graph);
  Status status = recorded.ok() ? cuda_status(ended, "a graph") : std::move(recorded);
  size_t num_nodes = 0;
  cudaGraphExec_t executable = nullptr;
  if (status.ok()) {
    status = cuda_status(cudaGraphGetNodes(graph, nullptr, &num_nodes), "a graph");
  }
  if (status.ok()) status = cuda_status(cudaGraphInstantiate(&executable, graph, 0), "a graph");
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok()) {
    cudaGetLastError();
    return status;
  }
  return Graph(executable, static_cast<int64_t>(num_nodes));
}

Status Graph::replay(Stream& stream) {
  return cuda_status(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_.get()), as_stream(stream)),
                     "a graph");
}

namespace internal {

Result<std::byte*> allocate_on_device(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    const Result<int64_t> free = cuda_free_bytes();
    return out_of_memory(
        str_cat(bytes, " bytes of GPU memory asked for, ", free.ok() ? *free : 0, " are free"));
  }
  FATHOM_TRY(cuda_status(error, str_cat(bytes, " bytes of GPU memory")));
  FATHOM_TRY(zero(static_cast<std::byte*>(memory), bytes));
  return static_cast<std::byte*>(memory);
}

Result<std::byte*> allocate_pinned(int64_t bytes) {
  void* memory = nullptr;
  FATHOM_TRY(cuda_status(cudaMallocHost(&memory, static_cast<size_t>(bytes)),
                         str_cat(bytes, " bytes of pinned memory")));
  std::fill_n(static_cast<std::byte*>(memory), bytes, std::byte{0});
  return static_cast<std::byte*>(memory);
}

// A failure to free means that the context is lost, which the next call reports.
void FreeOnDevice::operator()(std::byte* p) const {
  cudaFree(p);
}

void FreePinned::operator()(std::byte* p) const {
  cudaFreeHost(p);
}

void DestroyStream::operator()(void* stream) const {
  cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

void DestroyEvent::operator()(void* event) const {
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

void DestroyGraph::operator()(void* graph) const {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace internal
}  // namespace fathom
