// The CUDA of this program and the CUDA of the machine it runs on, which need not be one.
#pragma once

#include <vector>

namespace fathom {

/// What this program was built with.
struct CudaBuild {
  int runtime_version = 0;  ///< as CUDA counts: 13000 is 13.0; 0: no CUDA backend
  std::vector<int> sms;     ///< architectures that it has code for: 90 for Hopper
};

CudaBuild cuda_build();

/// The newest CUDA that the driver of this machine runs, as CUDA counts; 0 where it cannot be
/// asked: without a driver, and in a build without the CUDA backend.
int cuda_driver_version();

}  // namespace fathom
