#include "fathom/tensor/inspect.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

TEST(StatisticsOf, AreThoseOfTheNumbers) {
  std::vector<float> x = {3, -4, 0, 1};

  const TensorStatistics s = statistics_of(make_view(x.data(), {2, 2}, Format::kF32));

  EXPECT_EQ(s.min, -4);
  EXPECT_EQ(s.max, 3);
  EXPECT_EQ(s.mean, 0);
  EXPECT_DOUBLE_EQ(s.l2, std::sqrt(26.0));
  EXPECT_EQ(s.non_finite, 0);
}

TEST(StatisticsOf, SkipWhatLiesBetweenStridedRows) {
  std::vector<float> x = {1, 2, 99, 3, 4, 99};
  const View v = slice_cols(make_view(x.data(), {2, 3}, Format::kF32), 0, 2);

  const TensorStatistics s = statistics_of(v);

  EXPECT_EQ(s.max, 4);
  EXPECT_EQ(s.mean, 2.5);
}

TEST(StatisticsOf, CountNumbersThatAreNotFiniteApart) {
  std::vector<float> x = {1, std::numeric_limits<float>::quiet_NaN(), 3,
                          -std::numeric_limits<float>::infinity()};

  const TensorStatistics s = statistics_of(make_view(x.data(), {4}, Format::kF32));

  EXPECT_EQ(s.non_finite, 2);
  EXPECT_EQ(s.mean, 2);
  EXPECT_EQ(s.min, 1);
}

TEST(StatisticsOf, ReadEveryDenseFormat) {
  std::vector<uint16_t> bf16 = {bf16_from_float(-2.0f).bits, bf16_from_float(6.0f).bits};
  std::vector<uint16_t> f16 = {f16_from_float(-2.0f).bits, f16_from_float(6.0f).bits};
  std::vector<uint8_t> e4m3 = {e4m3_from_float(-2.0f).bits, e4m3_from_float(6.0f).bits};
  std::vector<uint8_t> e5m2 = {e5m2_from_float(-2.0f).bits, e5m2_from_float(6.0f).bits};
  std::vector<int8_t> i8 = {-2, 6};
  std::vector<int32_t> i32 = {-2, 6};
  std::vector<int64_t> i64 = {-2, 6};
  std::vector<double> f64 = {-2, 6};
  const std::pair<void*, Format> all[] = {
      {bf16.data(), Format::kBf16}, {f16.data(), Format::kF16}, {e4m3.data(), Format::kE4m3},
      {e5m2.data(), Format::kE5m2}, {i8.data(), Format::kI8},   {i32.data(), Format::kI32},
      {i64.data(), Format::kI64},   {f64.data(), Format::kF64},
  };
  for (const auto& [data, format] : all) {
    const TensorStatistics s = statistics_of(make_view(data, {2}, format));
    EXPECT_EQ(s.min, -2) << format_name(format);
    EXPECT_EQ(s.max, 6) << format_name(format);
  }
}

TEST(StatisticsOf, TakeQuantisedValuesAsBytes) {
  std::vector<uint8_t> codes = {1, 2, 3, 10, 0, 0, 0, 0};

  EXPECT_EQ(statistics_of(make_view(codes.data(), {1, 16}, Format::kNvfp4)).max, 10);
}

TEST(StatisticsOf, AreZeroWithoutNumbers) {
  EXPECT_EQ(statistics_of(make_view(nullptr, {0, 4}, Format::kF32)).l2, 0);
  EXPECT_EQ(statistics_of(make_view(nullptr, {2}, Format::kF32)).max, 0);
}

}  // namespace
}  // namespace fathom
