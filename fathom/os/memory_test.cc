#include "fathom/os/memory.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <utility>

namespace fathom {
namespace {

TEST(HostBuffer, IsZeroedAlignedAndWritableAtEverySize) {
  for (const int64_t size :
       {int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{4097}, kHugePageBytes - 1, kHugePageBytes,
        kHugePageBytes + 1, 3 * kHugePageBytes + 12345}) {
    auto buffer = huge_alloc(size);
    ASSERT_TRUE(buffer.ok()) << buffer.status().message();
    EXPECT_EQ(buffer->size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kHugePageBytes, 0u);
    EXPECT_TRUE(std::all_of(buffer->bytes().begin(), buffer->bytes().end(),
                            [](std::byte b) { return b == std::byte{0}; }));
    std::memset(buffer->data(), 0xff, static_cast<size_t>(size));
    EXPECT_EQ(buffer->bytes().back(), std::byte{0xff});
  }
}

TEST(HostBuffer, ZeroBytesGiveAnEmptyBuffer) {
  const auto buffer = huge_alloc(0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->size(), 0);
  EXPECT_EQ(buffer->data(), nullptr);
}

TEST(HostBuffer, MoveTakesTheMappingAlong) {
  auto first = huge_alloc(5000);
  ASSERT_TRUE(first.ok());
  std::byte* data = first->data();
  data[4999] = std::byte{7};

  HostBuffer second = std::move(*first);

  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size(), 5000);
  EXPECT_EQ(second.data()[4999], std::byte{7});
  EXPECT_EQ(first->data(), nullptr);
  EXPECT_EQ(first->size(), 0);
}

TEST(HostBuffer, TooMuchIsOutOfMemoryWithTheSize) {
  for (const int64_t size : {int64_t{1} << 52, INT64_MAX - 4096, INT64_MAX}) {
    const auto buffer = huge_alloc(size);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), StatusCode::kOutOfMemory);
    EXPECT_EQ(buffer.status().message().find("cannot allocate " + std::to_string(size) +
                                             " bytes of host memory: Cannot allocate memory ("),
              0u)
        << buffer.status().message();
  }
}

TEST(HostMemory, AvailableIsPartOfTotal) {
  const HostMemory memory = host_memory();
  EXPECT_GT(memory.total_bytes, 64ll << 20);
  EXPECT_GT(memory.available_bytes, 0);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
}

TEST(PeakRss, GrowsWithTouchedMemoryAndStays) {
  constexpr int64_t kSize = 64ll << 20;
  const int64_t before = peak_rss_bytes();
  {
    auto buffer = huge_alloc(kSize);
    ASSERT_TRUE(buffer.ok());
    std::memset(buffer->data(), 1, static_cast<size_t>(kSize));
  }
  EXPECT_GT(before, 0);
  EXPECT_GE(peak_rss_bytes(), kSize);
  EXPECT_GE(peak_rss_bytes(), before);
}

}  // namespace
}  // namespace fathom
