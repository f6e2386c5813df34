// The GPUs of this machine. A process works on one of them, chosen once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/memory.h"

namespace fathom {

/// What a GPU is, as its driver says.
struct DeviceInfo {
  int ordinal = 0;              ///< -1: a GPU that is described and cannot be asked
  std::string name;             ///< "NVIDIA H200"
  int sm = 0;                   ///< compute capability times ten: 90 for Hopper
  int num_sms = 0;              ///< multiprocessors
  int64_t total_bytes = 0;      ///< of its memory
  int64_t l2_bytes = 0;         ///< of its last cache
  int64_t shared_bytes = 0;     ///< shared memory that one block may take
  int64_t shared_sm_bytes = 0;  ///< shared memory of one multiprocessor
  int clock_mhz = 0;            ///< the highest clock of its multiprocessors
  int driver_version = 0;       ///< as CUDA counts: 13000 is 13.0
  int runtime_version = 0;      ///< of the runtime in this program
};

/// True if this program was built with the CUDA backend.
bool cuda_is_built();

/// The GPUs of this machine, those included that this build has no code for.
/// Errors: Unavailable, in one line, when the build has no CUDA backend or the machine no GPU or no
/// driver that is new enough.
Result<std::vector<DeviceInfo>> cuda_devices();

/// Makes a GPU the one this thread works on and returns what it is. Called at the start, and once
/// in every further thread that allocates on it or launches kernels.
/// Errors: Unavailable as cuda_devices(), for a number that no GPU has, and for a GPU that this
/// build has no code for.
Result<DeviceInfo> use_cuda_device(int ordinal);

/// Bytes of GPU memory that can be taken now, on the device in use. Errors: Unavailable.
Result<int64_t> cuda_free_bytes();

/// Waits for all work of the device in use. The first place where an asynchronous error of a kernel
/// shows. Errors: DeviceLost.
Status synchronize_device();

}  // namespace fathom
