// The kernels of this machine, made once for all tests of a program.
#pragma once

#include "fathom/kernels/core/kernel_set/kernel_set.h"

namespace fathom {

inline const KernelSet& cpu_kernels() {
  static const KernelSet kernels = KernelSet::for_cpu(best_isa());
  return kernels;
}

}  // namespace fathom
