// Linked instead of kernel_set_cuda.cc when the CUDA backend is off.
#include "fathom/kernels/core/kernel_set/kernel_set.h"

namespace fathom {

KernelSet KernelSet::for_cuda(int /*sm*/) {
  return KernelSet(Backend::kCuda);
}

}  // namespace fathom
