// Errors of the CUDA runtime as a Status. Included by files that may know CUDA.
#pragma once

#include <string_view>

#include <cuda_runtime_api.h>

#include "fathom/base/status.h"

namespace fathom {

/// The Status of an error: OutOfMemory, Unavailable (no GPU, no driver), DeviceLost for the errors
/// after which the context of the process is unusable, Internal for all others.
Status cuda_error(cudaError_t error,
                  std::string_view what,
                  const char* file = __builtin_FILE(),
                  int line = __builtin_LINE());

/// Success, or cuda_error.
inline Status cuda_status(cudaError_t error,
                          std::string_view what,
                          const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  if (error == cudaSuccess) [[likely]]
    return {};
  return cuda_error(error, what, file, line);
}

}  // namespace fathom
