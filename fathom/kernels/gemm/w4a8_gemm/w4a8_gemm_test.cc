#include "fathom/kernels/gemm/w4a8_gemm/w4a8_gemm.h"

#include <gtest/gtest.h>
#include <vector>

#include "fathom/formats/integer/qserve.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/gemm/quantised_calls_test.h"

namespace fathom {
namespace {

/// Operands of the QServe kernels with random codes, scales and zeros.
struct QserveOperands {
  int64_t t = 9, n = 96, k = 384;
  std::vector<uint8_t> x = random_bytes(static_cast<size_t>(t * k), 11);
  std::vector<uint8_t> w = random_bytes(static_cast<size_t>(n * k / 2), 12);
  std::vector<uint8_t> group_scales = random_bytes(static_cast<size_t>(k / 128 * n), 13);
  std::vector<uint8_t> group_zeros = random_bytes(static_cast<size_t>(k / 128 * n), 14);
  std::vector<F16> rows[2], columns[2];
  std::vector<F16> y = std::vector<F16>(static_cast<size_t>(t * n));

  QserveOperands() {
    for (int i = 0; i < 2; ++i) {
      for (float v : random_floats(static_cast<size_t>(t), 15 + static_cast<uint64_t>(i)))
        rows[i].push_back(f16_from_float(0.05f * v));
      for (float v : random_floats(static_cast<size_t>(n), 17 + static_cast<uint64_t>(i)))
        columns[i].push_back(f16_from_float(0.05f * v));
    }
  }

  View row_view(int i) { return make_view(rows[i].data(), {t}, Format::kF16); }

  View column_view(int i) { return make_view(columns[i].data(), {n}, Format::kF16); }

  View groups(std::vector<uint8_t>& v) { return make_view(v.data(), {k / 128, n}, Format::kI8); }

  View packed(Format format) {
    View v = make_view(nullptr, {n, k}, format);
    v.data = w.data();
    return v;
  }

  W4a8GemmChannel::Args channel() {
    return {.x = make_view(x.data(), {t, k}, Format::kI8),
            .x_scales = row_view(0),
            .x_sums = row_view(1),
            .w = packed(Format::kW4a8Channel),
            .w_scales = column_view(0),
            .w_zeros = column_view(1),
            .y = make_view(y.data(), {t, n}, Format::kF16)};
  }

  W4a8GemmGroup::Args group() {
    return {.x = make_view(x.data(), {t, k}, Format::kI8),
            .x_scales = row_view(0),
            .w = packed(Format::kW4a8Group),
            .group_scales = groups(group_scales),
            .group_zeros = groups(group_zeros),
            .w_scales = column_view(0),
            .y = make_view(y.data(), {t, n}, Format::kF16)};
  }
};

TEST(W4a8Gemm, EveryVariantGivesTheSameBits) {
  QserveOperands o;
  ASSERT_TRUE(Caller("portable").run<W4a8GemmChannel>(o.channel()).ok());
  const std::vector<F16> channel = o.y;
  ASSERT_TRUE(Caller("portable").run<W4a8GemmGroup>(o.group()).ok());
  const std::vector<F16> group = o.y;
  for (std::string_view variant : variants_for<W4a8GemmChannel>(o.channel())) {
    ASSERT_TRUE(Caller(variant).run<W4a8GemmChannel>(o.channel()).ok());
    EXPECT_TRUE(same_bits(o.y, channel)) << variant;
  }
  for (std::string_view variant : variants_for<W4a8GemmGroup>(o.group())) {
    ASSERT_TRUE(Caller(variant).run<W4a8GemmGroup>(o.group()).ok());
    EXPECT_TRUE(same_bits(o.y, group)) << variant;
  }
}

TEST(W4a8Gemm, GroupValuesWrapInEightBits) {
  // One k of every row of x is 1: y is then the int8 weight.
  QserveOperands o;
  for (F16& scale : o.rows[0])
    scale = f16_from_float(1.0f);
  for (F16& scale : o.columns[0])
    scale = f16_from_float(1.0f);
  std::vector<uint8_t> codes(static_cast<size_t>(o.n * o.k));
  ASSERT_TRUE(qserve_unpack(o.w.data(), o.n, o.k, codes.data()).ok());
  for (std::string_view variant : variants_for<W4a8GemmGroup>(o.group())) {
    for (int64_t k : {int64_t{0}, int64_t{5}, int64_t{127}, int64_t{128}, o.k - 1}) {
      std::fill(o.x.begin(), o.x.end(), uint8_t{0});
      o.x[static_cast<size_t>(k)] = 1;
      ASSERT_TRUE(Caller(variant).run<W4a8GemmGroup>(o.group()).ok());
      for (int64_t n = 0; n < o.n; ++n) {
        const auto at = static_cast<size_t>(k / 128 * o.n + qserve_scale_position(n));
        const int value =
            codes[static_cast<size_t>(n * o.k + k)] * static_cast<int8_t>(o.group_scales[at]) +
            static_cast<int8_t>(o.group_zeros[at]);
        ASSERT_EQ(to_float(o.y[static_cast<size_t>(n)]),
                  static_cast<float>(static_cast<int8_t>(value)))
            << variant << " row " << n << " k " << k;
      }
    }
  }
}

TEST(W4a8Gemm, LimitsNameTheTilesOfThirtyTwo) {
  QserveOperands o;
  W4a8GemmChannel::Args args = o.channel();
  args.x.dims[1] = args.w.dims[1] = args.w.strides[0] = args.x.strides[0] = 48;
  EXPECT_NE(Caller().run<W4a8GemmChannel>(args).message().find("K%32==0"), std::string::npos);
}

}  // namespace
}  // namespace fathom
