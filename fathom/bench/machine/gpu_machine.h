// A GPU as a benchmark states it: what it is, and the ceilings its rows are held against.
#pragma once

#include "fathom/bench/machine/peaks.h"
#include "fathom/device/device.h"
#include "fathom/device/stream.h"

namespace fathom {

struct GpuMachine {
  DeviceInfo device;
  Peaks peaks;
};

/// Memory rates of the GPU in use, best of eight passes over up to 2 GiB, with the arithmetic of
/// its data sheet; a GPU that has no data sheet here is held against that of the h200, and
/// `peaks.source` says so. Errors: OutOfMemory; those of CUDA.
Result<Peaks> measure_gpu_peaks(const DeviceInfo& device, Stream& stream);

/// Takes GPU `ordinal` into use in a child process and measures it there, so that this process may
/// go on to start children that use the GPU. Errors: Unavailable, in words for the user.
Result<GpuMachine> measure_gpu_in_child(int ordinal);

}  // namespace fathom
