#include "fathom/tensor/view.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

// A view that forgets this has its memory read by the host, which cannot.
TEST(View, PartsOfGpuMemoryAreGpuMemory) {
  int32_t memory[12] = {};
  View v = make_view(memory, {3, 4}, Format::kI32);
  v.on_device = true;

  EXPECT_FALSE(v.readable());
  EXPECT_TRUE(slice_rows(v, 1, 1).on_device);
  EXPECT_TRUE(slice_cols(v, 1, 2).on_device);
  EXPECT_TRUE(reshape(v, {12}).on_device);
  EXPECT_TRUE(reshape(slice_cols(v, 0, 2), {3, 2, 1}).on_device);
  EXPECT_TRUE(v.with_axes("A,B").on_device);
  EXPECT_FALSE(reshape(make_view(memory, {3, 4}, Format::kI32), {12}).on_device);
}

TEST(View, SplittingTheLastAxisOfASliceKeepsTheStridesOfItsRows) {
  float numbers[2 * 3 * 10] = {};
  const View rows = make_view(numbers, {2, 3, 10}, Format::kF32);

  const View split = reshape(slice_cols(rows, 4, 6), {2, 3, 2, 3}, "A,B,C,D");

  EXPECT_EQ(split.rank, 4);
  EXPECT_EQ(split.as<float>(), numbers + 4);
  EXPECT_EQ(split.stride(0), 30);
  EXPECT_EQ(split.stride(1), 10);
  EXPECT_EQ(split.stride(2), 3);
  EXPECT_EQ(split.stride(3), 1);
}

}  // namespace
}  // namespace fathom
