// What a model runs on.
#pragma once

#include "fathom/device/device.h"
#include "fathom/kernels/core/kernel_set/kernel_set.h"
#include "fathom/os/thread_pool.h"
#include "fathom/runtime/gpu/gpu.h"

namespace fathom {

/// The threads of this process with their kernels, and the GPU where the model lies, if it does.
/// All of them outlive whoever holds this.
struct Compute {
  ThreadPool* pool = nullptr;
  const KernelSet* cpu_kernels = nullptr;
  Gpu* gpu = nullptr;

  const KernelSet& kernels() const { return gpu == nullptr ? *cpu_kernels : gpu->kernels(); }

  /// Null on the CPU.
  const DeviceInfo* device() const { return gpu == nullptr ? nullptr : &gpu->info(); }
};

}  // namespace fathom
