#include "fathom/kernels/attn/mla_concat/mla_concat.h"

#include <gtest/gtest.h>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

TEST(ConcatK, RepeatsTheSharedKeyForEveryHead) {
  TestExec ex;
  const TestTensor kv({1, 2, 3}, Format::kBf16, {1, 2, 90, 3, 4, 91});  // [k_nope | v] of each head
  const TestTensor k_pe({1, 1}, Format::kBf16, {7});
  const TestTensor k({1, 2, 3}, Format::kBf16, -1.0f);

  FATHOM_EXPECT_OK(launch<ConcatK>(
      *ex, "test", {.k_nope = slice_cols(kv.view(), 0, 2), .k_pe = k_pe.view(), .k = k.view()}));

  EXPECT_EQ(k.values(), (std::vector<float>{1, 2, 7, 3, 4, 7}));
}

TEST(ConcatAbsorbedQ, TakesATransposedProduct) {
  TestExec ex;
  // q_lat as a batched product leaves it: [N, T, L], here read as [T, N, L].
  const TestTensor product({2, 2, 1}, Format::kF32, {1, 2, 3, 4});
  View q_lat = product.view();
  std::swap(q_lat.strides[0], q_lat.strides[1]);
  const TestTensor q_pe({2, 2, 1}, Format::kF32, {10, 20, 30, 40});
  const TestTensor q({2, 2, 2}, Format::kF32, -1.0f);

  FATHOM_EXPECT_OK(
      launch<ConcatAbsorbedQ>(*ex, "test", {.q_lat = q_lat, .q_pe = q_pe.view(), .q = q.view()}));

  EXPECT_EQ(q.values(), (std::vector<float>{1, 10, 3, 20, 2, 30, 4, 40}));
}

TEST(ConcatK, RefusesMixedFormats) {
  TestExec ex;
  const TestTensor k_nope({1, 2, 2}, Format::kBf16);
  const TestTensor k_pe({1, 1}, Format::kF32);
  const TestTensor k({1, 2, 3}, Format::kBf16);

  const Status status =
      launch<ConcatK>(*ex, "test", {.k_nope = k_nope.view(), .k_pe = k_pe.view(), .k = k.view()});

  EXPECT_NE(status.message().find("k is bf16 but k_pe is f32"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace fathom
