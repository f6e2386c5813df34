#include "fathom/kernels/gemm/int8_gemm/int8_gemm.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/gemm/quantised_calls_test.h"

namespace fathom {
namespace {

/// Operands of int8_gemm: t x n, k.
struct Int8Operands {
  int64_t t, n, k;
  std::vector<uint8_t> x = random_bytes(static_cast<size_t>(t * k), 1);
  std::vector<uint8_t> w = random_bytes(static_cast<size_t>(n * k), 2);
  std::vector<float> x_scales = random_floats(static_cast<size_t>(t), 3);
  std::vector<float> w_scales = random_floats(static_cast<size_t>(n), 4);
  std::vector<float> bias = random_floats(static_cast<size_t>(n), 5);
  std::vector<float> y = std::vector<float>(static_cast<size_t>(t * n));

  Int8Gemm::Args args() {
    QuantView weight;
    weight.values = make_view(w.data(), {n, k}, Format::kInt8Channel);
    weight.scales = make_view(w_scales.data(), {n, 1}, Format::kF32);
    return {.x = make_view(x.data(), {t, k}, Format::kI8),
            .x_scales = make_view(x_scales.data(), {t}, Format::kF32),
            .w = weight,
            .bias = make_view(bias.data(), {n}, Format::kF32),
            .y = make_view(y.data(), {t, n}, Format::kF32)};
  }
};

TEST(Int8Gemm, EveryVariantGivesTheBitsOfTheEquationInFloat32) {
  Int8Operands o{.t = 19, .n = 37, .k = 301};
  for (std::string_view variant : variants_for<Int8Gemm>(o.args())) {
    ASSERT_TRUE(Caller(variant).run<Int8Gemm>(o.args()).ok());
    for (int64_t t = 0; t < o.t; ++t) {
      for (int64_t n = 0; n < o.n; ++n) {
        int64_t sum = 0;
        for (int64_t k = 0; k < o.k; ++k) {
          sum += int64_t{static_cast<int8_t>(o.x[static_cast<size_t>(t * o.k + k)])} *
                 int64_t{static_cast<int8_t>(o.w[static_cast<size_t>(n * o.k + k)])};
        }
        float expected = static_cast<float>(sum) * o.x_scales[static_cast<size_t>(t)];
        expected *= o.w_scales[static_cast<size_t>(n)];
        expected += o.bias[static_cast<size_t>(n)];
        ASSERT_EQ(o.y[static_cast<size_t>(t * o.n + n)], expected)
            << variant << " row " << t << " column " << n;
      }
    }
  }
}

TEST(Int8Gemm, NanAndInfinityOfScalesReachTheirOwnRowAndColumn) {
  Int8Operands o{.t = 5, .n = 20, .k = 64};
  o.x_scales[3] = kNan;
  o.w_scales[7] = kInfinity;
  o.bias[11] = -kInfinity;
  for (std::string_view variant : variants_for<Int8Gemm>(o.args())) {
    ASSERT_TRUE(Caller(variant).run<Int8Gemm>(o.args()).ok());
    for (int64_t t = 0; t < o.t; ++t) {
      for (int64_t n = 0; n < o.n; ++n) {
        const float y = o.y[static_cast<size_t>(t * o.n + n)];
        if (t == 3) {
          ASSERT_TRUE(std::isnan(y)) << variant;
        } else if (n == 7) {
          ASSERT_TRUE(std::isinf(y)) << variant;
        } else if (n == 11) {
          ASSERT_EQ(y, -kInfinity) << variant;
        } else {
          ASSERT_TRUE(std::isfinite(y)) << variant;
        }
      }
    }
  }
}

TEST(Int8Gemm, SumsBeyondFloat16AreInfinite) {
  Int8Operands o{.t = 1, .n = 2, .k = 64};
  std::fill(o.x.begin(), o.x.end(), uint8_t{100});
  std::fill(o.w.begin(), o.w.begin() + 64, uint8_t{100});
  std::fill(o.w.begin() + 64, o.w.end(), uint8_t{static_cast<uint8_t>(-100)});
  o.x_scales[0] = o.w_scales[0] = o.w_scales[1] = 1.0f;
  o.bias = {0.0f, 0.0f};
  F16 y[2];
  Int8Gemm::Args args = o.args();
  args.y = make_view(y, {1, 2}, Format::kF16);
  for (std::string_view variant : variants_for<Int8Gemm>(args)) {
    ASSERT_TRUE(Caller(variant).run<Int8Gemm>(args).ok());
    EXPECT_EQ(to_float(y[0]), kInfinity) << variant;
    EXPECT_EQ(to_float(y[1]), -kInfinity) << variant;
  }
}

}  // namespace
}  // namespace fathom
