#include "tests/support/allocation_count.h"

#include <gtest/gtest.h>
#include <memory>

// Sanitizers keep their own operators, which nobody counts.
#ifndef FATHOM_SANITIZED
TEST(AllocationCount, SeesAnAllocation) {
  const int64_t before = fathom::allocation_count();

  const auto value = std::make_unique<int64_t>(1);

  EXPECT_EQ(fathom::allocation_count() - before, *value);
}
#endif
