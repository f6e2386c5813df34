#include "fathom/device/described_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(DescribedGpu, IsNoneThatCanBeAsked) {
  for (const std::string_view name : described_gpu_names()) {
    const std::optional<DeviceInfo> gpu = described_gpu(name);

    ASSERT_TRUE(gpu) << name;
    EXPECT_EQ(gpu->ordinal, -1) << name;
    EXPECT_EQ(gpu->name, name);
    EXPECT_GE(gpu->sm, 90) << name;
    EXPECT_GT(gpu->num_sms, 0) << name;
  }
}

TEST(DescribedGpu, NamesAreThoseOfCards) {
  EXPECT_THAT(described_gpu_names(), testing::Contains("h200"));
  EXPECT_FALSE(described_gpu("cpu"));
  EXPECT_FALSE(described_gpu("H200"));
}

}  // namespace
}  // namespace fathom
