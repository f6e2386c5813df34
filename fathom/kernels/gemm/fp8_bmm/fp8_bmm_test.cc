#include "fathom/kernels/gemm/fp8_bmm/fp8_bmm.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/gemm/quantised_calls_test.h"

namespace fathom {
namespace {

TEST(Fp8Bmm, EveryCodeIsExactInEveryVariant) {
  std::vector<uint8_t> x(1, 0x38), w(1);
  float one = 1.0f, y = 0;
  for (Format format : {Format::kE4m3, Format::kE5m2}) {
    const Fp8Bmm::Args args{.x = make_view(x.data(), {1, 1, 1}, Format::kE4m3),
                            .w = make_view(w.data(), {1, 1, 1}, format),
                            .x_scale = make_view(&one, {1}, Format::kF32),
                            .w_scale = make_view(&one, {1}, Format::kF32),
                            .y = make_view(&y, {1, 1, 1}, Format::kF32)};
    for (std::string_view variant : variants_for<Fp8Bmm>(args)) {
      Caller caller(variant);
      for (int code = 0; code < 256; ++code) {
        w[0] = static_cast<uint8_t>(code);
        ASSERT_TRUE(caller.run<Fp8Bmm>(args).ok());
        const float value = format == Format::kE4m3 ? to_float(E4m3{w[0]}) : to_float(E5m2{w[0]});
        ASSERT_TRUE(std::isnan(value) ? std::isnan(y) : y == value) << variant << " code " << code;
      }
    }
  }
}

TEST(Fp8Bmm, TakesRowsAndHeadsInEitherOrder) {
  // x and y as [T, B, K] with their first axes swapped give what packed [B, T, K] gives.
  const int64_t b = 3, t = 5, n = 24, k = 40;
  std::vector<uint8_t> x = random_e4m3(static_cast<size_t>(b * t * k), 31);
  std::vector<uint8_t> w = random_e4m3(static_cast<size_t>(b * n * k), 32);
  std::vector<uint8_t> x_swapped(x.size());
  for (int64_t i = 0; i < b * t * k; ++i) {
    x_swapped[static_cast<size_t>((i / k % t * b + i / (t * k)) * k + i % k)] =
        x[static_cast<size_t>(i)];
  }
  float scale = 0.01f;
  std::vector<Bf16> y(static_cast<size_t>(b * t * n)), y_swapped(y.size());
  Fp8Bmm::Args args{.x = make_view(x.data(), {b, t, k}, Format::kE4m3),
                    .w = make_view(w.data(), {b, n, k}, Format::kE4m3),
                    .x_scale = make_view(&scale, {1}, Format::kF32),
                    .w_scale = make_view(&scale, {1}, Format::kF32),
                    .y = make_view(y.data(), {b, t, n}, Format::kBf16)};
  ASSERT_TRUE(Caller().run<Fp8Bmm>(args).ok());
  args.x.data = x_swapped.data();
  args.x.strides = {k, b * k, 1};
  args.y.data = y_swapped.data();
  args.y.strides = {n, b * n, 1};
  ASSERT_TRUE(Caller().run<Fp8Bmm>(args).ok());
  for (int64_t i = 0; i < b * t * n; ++i) {
    ASSERT_EQ(y_swapped[static_cast<size_t>((i / n % t * b + i / (t * n)) * n + i % n)],
              y[static_cast<size_t>(i)]);
  }
}

TEST(Fp8Bmm, RefusesTwoE5m2) {
  uint8_t x = 0, w = 0;
  float scale = 1.0f, y = 0;
  const Fp8Bmm::Args args{.x = make_view(&x, {1, 1, 1}, Format::kE5m2),
                          .w = make_view(&w, {1, 1, 1}, Format::kE5m2),
                          .x_scale = make_view(&scale, {1}, Format::kF32),
                          .w_scale = make_view(&scale, {1}, Format::kF32),
                          .y = make_view(&y, {1, 1, 1}, Format::kF32)};
  EXPECT_NE(Caller().run<Fp8Bmm>(args).message().find("at most one"), std::string::npos);
}

/// A row of x of the same bits alone, in a batch, and beyond the rows that are decoded at once.
TEST(Fp8Bmm, RowHasTheSameBitsInEveryBatch) {
  const int64_t t = 530, n = 20, k = 136;
  std::vector<uint8_t> x = random_e4m3(static_cast<size_t>(t * k), 41);
  std::vector<uint8_t> w = random_e4m3(static_cast<size_t>(n * k), 42);
  float scale = 0.01f;
  std::vector<float> all(static_cast<size_t>(t * n)), one(static_cast<size_t>(n));
  Fp8Bmm::Args args{.x = make_view(x.data(), {1, t, k}, Format::kE4m3),
                    .w = make_view(w.data(), {1, n, k}, Format::kE4m3),
                    .x_scale = make_view(&scale, {1}, Format::kF32),
                    .w_scale = make_view(&scale, {1}, Format::kF32),
                    .y = make_view(all.data(), {1, t, n}, Format::kF32)};
  for (std::string_view variant : variants_for<Fp8Bmm>(args)) {
    Caller caller(variant);
    ASSERT_TRUE(caller.run<Fp8Bmm>(args).ok());
    for (int64_t row : {0, 1, 63, 64, 511, 512, 529}) {
      Fp8Bmm::Args single = args;
      single.x = make_view(x.data() + row * k, {1, 1, k}, Format::kE4m3);
      single.y = make_view(one.data(), {1, 1, n}, Format::kF32);
      ASSERT_TRUE(caller.run<Fp8Bmm>(single).ok());
      EXPECT_TRUE(same_bits(one, {all.begin() + row * n, all.begin() + (row + 1) * n}))
          << variant << " row " << row;
    }
  }
}

}  // namespace
}  // namespace fathom
