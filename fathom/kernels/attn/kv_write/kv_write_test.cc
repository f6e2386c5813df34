#include "fathom/kernels/attn/kv_write/kv_write.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

TEST(KvWrite, PutsTheLatentBeforeTheRotaryKeyInItsSlot) {
  TestExec ex;
  const TestTensor c({3, 2}, Format::kBf16, {1, 2, 3, 4, 5, 6});
  const TestTensor k_pe({3, 1}, Format::kBf16, {10, 20, 30});
  const TestTensor slots({3}, Format::kI64, {3, -1, 0});
  const TestTensor cache({2, 2, 3}, Format::kBf16, -1.0f);

  FATHOM_EXPECT_OK(launch<KvWrite>(
      *ex, "test",
      {.c = c.view(), .k_pe = k_pe.view(), .slots = slots.view(), .cache = cache.view()}));

  EXPECT_EQ(cache.values(), (std::vector<float>{5, 6, 30, -1, -1, -1, -1, -1, -1, 1, 2, 10}));
}

TEST(KvWrite, RoundsToE4m3AsTheFormatSays) {
  TestExec ex;
  const std::vector<float> values = {.1f, -.3f, 17,    18,      19,       447,
                                     464, 1000, -1e9f, 0x1p-9f, 0x1p-10f, 0x1.8p-10f};
  const std::vector<float> expected = {.1015625f, -.3125f, 16,   18,      20, 448,
                                       448,       448,     -448, 0x1p-9f, 0,  0x1p-9f};
  const TestTensor c({1, 12}, Format::kF32, values);
  const TestTensor k_pe({1, 0}, Format::kF32);
  const TestTensor slots({1}, Format::kI64, 0.0f);
  const TestTensor cache({1, 1, 12}, Format::kE4m3);

  FATHOM_EXPECT_OK(launch<KvWrite>(
      *ex, "test",
      {.c = c.view(), .k_pe = k_pe.view(), .slots = slots.view(), .cache = cache.view()}));

  EXPECT_EQ(cache.values(), expected);
}

TEST(KvWrite, DividesByTheScaleThatTheGatherMultipliesWith) {
  TestExec ex;
  const TestTensor c({1, 3}, Format::kF32, {0.5f, 100.0f, -3.0f});
  const TestTensor k_pe({1, 1}, Format::kF32, {900.0f});
  const TestTensor slots({1}, Format::kI64, {2.0f});
  const TestTensor pages({2}, Format::kI32, {7, 1});
  const TestTensor cache({2, 2, 4}, Format::kE4m3);
  const TestTensor c_back({1, 3}, Format::kF32, NAN);
  const TestTensor k_back({1, 1}, Format::kF32, NAN);

  FATHOM_EXPECT_OK(launch<KvWrite>(*ex, "test",
                                   {.c = c.view(),
                                    .k_pe = k_pe.view(),
                                    .slots = slots.view(),
                                    .cache = cache.view(),
                                    .scale = 4.0f}));
  FATHOM_EXPECT_OK(launch<KvGather>(*ex, "test",
                                    {.cache = cache.view(),
                                     .pages = pages.view(),
                                     .c = c_back.view(),
                                     .k_pe = k_back.view(),
                                     .begin = 2,
                                     .scale = 4.0f}));

  EXPECT_EQ(cache[8], 0.125f);
  // 25 lies in the middle of 24 and 26, and the mantissa of 24 is even.
  EXPECT_EQ(c_back.values(), (std::vector<float>{0.5f, 96.0f, -3.0f}));
  EXPECT_EQ(k_back[0], 896.0f);
}

TEST(KvWrite, WritesNothingWhenASlotDoesNotExist) {
  TestExec ex;
  const TestTensor c({2, 1}, Format::kBf16);
  const TestTensor k_pe({2, 1}, Format::kBf16);
  const TestTensor cache({2, 2, 2}, Format::kBf16, 9.0f);
  for (float bad : {4.0f, -2.0f}) {
    const TestTensor slots({2}, Format::kI64, {0, bad});

    const Status status = launch<KvWrite>(
        *ex, "test",
        {.c = c.view(), .k_pe = k_pe.view(), .slots = slots.view(), .cache = cache.view()});

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("slots[1] is"), std::string::npos) << status.message();
    EXPECT_EQ(cache.values(), std::vector<float>(8, 9.0f));
  }
}

TEST(KvWrite, RefusesAScaleForACacheThatHasNone) {
  TestExec ex;
  const TestTensor c({1, 1}, Format::kBf16);
  const TestTensor slots({1}, Format::kI64, 0.0f);
  const TestTensor cache({1, 1, 2}, Format::kBf16);

  const Status status = launch<KvWrite>(*ex, "test",
                                        {.c = c.view(),
                                         .k_pe = c.view(),
                                         .slots = slots.view(),
                                         .cache = cache.view(),
                                         .scale = 2.0f});

  EXPECT_NE(status.message().find("scale is 2 but must be 1 for bf16"), std::string::npos)
      << status.message();
}

TEST(KvGather, RefusesTokensBeyondThePages) {
  TestExec ex;
  const TestTensor cache({4, 2, 2}, Format::kBf16);
  const TestTensor pages({2}, Format::kI32, {3, 0});
  const TestTensor c({3, 1}, Format::kBf16);
  for (int64_t begin : {2, -1}) {
    const Status status = launch<KvGather>(*ex, "test",
                                           {.cache = cache.view(),
                                            .pages = pages.view(),
                                            .c = c.view(),
                                            .k_pe = c.view(),
                                            .begin = begin});

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("2 pages of 2 tokens are given"), std::string::npos)
        << status.message();
  }
}

TEST(KvGather, RefusesPagesThatDoNotExistButOnlyThoseItReads) {
  TestExec ex;
  const TestTensor cache({4, 2, 2}, Format::kBf16);
  const TestTensor pages({3}, Format::kI32, {99, 3, 4});
  const TestTensor two({2, 1}, Format::kBf16);
  const auto gather = [&](int64_t begin) {
    return launch<KvGather>(*ex, "test",
                            {.cache = cache.view(),
                             .pages = pages.view(),
                             .c = two.view(),
                             .k_pe = two.view(),
                             .begin = begin});
  };

  FATHOM_EXPECT_OK(gather(2));
  EXPECT_NE(gather(1).message().find("page 0 is number 99"), std::string::npos);
  EXPECT_NE(gather(3).message().find("page 2 is number 4"), std::string::npos);
}

}  // namespace
}  // namespace fathom
