// Kernels that move memory and do nothing else: the ceilings that kernels are held against, and the
// way to fill the last cache of a GPU with other data.
#pragma once

#include <cstdint>

#include "fathom/base/status.h"
#include "fathom/device/stream.h"

namespace fathom {

/// Copies device memory by sixteen bytes a thread. Addresses and bytes are multiples of 16.
/// Errors: InvalidArgument if they are not; Unavailable without the CUDA backend.
Status copy_by_kernel(Stream& stream, void* to, const void* from, int64_t bytes);

/// Reads device memory, writing nothing but the 4 bytes at `sink`, and these only if all words of a
/// thread's share are zero together (their exclusive or, over the values of one thread). Addresses
/// and bytes are multiples of 16. Errors: as copy_by_kernel.
Status read_by_kernel(Stream& stream, const void* from, int64_t bytes, void* sink);

}  // namespace fathom
