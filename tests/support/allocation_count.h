// Counts calls of operator new in a test program that links allocation_count.cc.
#pragma once

#include <cstdint>

namespace fathom {

/// Calls of operator new in this process so far.
int64_t allocation_count();

}  // namespace fathom
