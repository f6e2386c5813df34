// Linked instead of install_cuda.cc when the CUDA backend is off.
#include "fathom/kernels/core/catalog.h"

namespace fathom {

void install_cuda_kernels(int /*sm*/) {}

void plan_cuda_kernels(int /*sm*/) {}

}  // namespace fathom
