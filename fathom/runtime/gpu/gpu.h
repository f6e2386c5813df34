// A GPU that a process computes on.
#pragma once

#include <memory>
#include <utility>

#include "fathom/base/status.h"
#include "fathom/device/device.h"
#include "fathom/device/stream.h"
#include "fathom/kernels/core/kernel_set/kernel_set.h"

namespace fathom {

/// A GPU in use, with its kernels and the stream that all steps go through.
class Gpu {
 public:
  /// Takes a GPU for this thread. Errors: Unavailable, in one line with what to do about it: no
  /// CUDA in this build, no GPU or driver, no such number, a GPU that this build has no code for.
  /// With `batch_invariant` its kernels are of one form (KernelSet::batch_invariant).
  static Result<std::unique_ptr<Gpu>> open(int ordinal = 0, bool batch_invariant = false);

  const DeviceInfo& info() const { return info_; }

  const KernelSet& kernels() const { return kernels_; }

  Stream& stream() { return stream_; }

  /// Those beside it.
  SideStreams& sides() { return sides_; }

 private:
  Gpu(DeviceInfo info, Stream stream, SideStreams sides, bool batch_invariant)
      : info_(std::move(info)),
        kernels_(KernelSet::for_cuda(info_.sm, batch_invariant)),
        stream_(std::move(stream)),
        sides_(std::move(sides)) {}

  DeviceInfo info_;
  KernelSet kernels_;
  Stream stream_;
  SideStreams sides_;
};

}  // namespace fathom
