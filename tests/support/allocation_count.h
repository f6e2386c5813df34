// Counts calls of operator new in a test program. The counting operators are defined by
// allocation_count_test.cc of the program that uses this.
#pragma once

#include <cstdint>

namespace fathom {

/// Calls of operator new in this process so far.
int64_t allocation_count();

}  // namespace fathom
