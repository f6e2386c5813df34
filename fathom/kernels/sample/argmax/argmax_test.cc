#include "fathom/kernels/sample/argmax/argmax.h"

#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/kernels/sample/argmax/argmax_rows.h"

namespace fathom {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

using Find = RowPeak (*)(const float*, int64_t);

class PeakTest : public testing::TestWithParam<Isa> {
 protected:
  RowPeak find(const std::vector<float>& row) {
    const Find f = GetParam() == Isa::kAvx512 && best_isa() >= Isa::kAvx512
                       ? static_cast<Find>(avx512::find_peak)
                       : static_cast<Find>(find_peak);
    return f(row.data(), static_cast<int64_t>(row.size()));
  }
};

TEST_P(PeakTest, FindsTheMaximumAtEveryPlaceOfEveryLength) {
  for (size_t length = 1; length <= 150; ++length) {
    for (size_t at = 0; at < length; ++at) {
      std::vector<float> row(length, -3.0f);
      row[at] = -2.0f;

      const RowPeak peak = find(row);

      ASSERT_EQ(peak.index, static_cast<int32_t>(at)) << "length " << length;
      ASSERT_EQ(peak.max, -2.0f);
      ASSERT_FALSE(peak.unusable);
    }
  }
}

TEST_P(PeakTest, LowestIndexWinsBetweenAnyTwoPlaces) {
  for (size_t first = 0; first < 130; first += 7) {
    for (size_t second = first + 1; second < 130; second += 5) {
      std::vector<float> row(130, 0.0f);
      row[first] = row[second] = 9.0f;
      ASSERT_EQ(find(row).index, static_cast<int32_t>(first)) << second;
    }
  }
}

TEST_P(PeakTest, ZerosOfBothSignsAreEqual) {
  EXPECT_EQ(find({-1, -0.0f, 0.0f}).index, 1);
  EXPECT_EQ(find({-1, 0.0f, -0.0f}).index, 1);
}

TEST_P(PeakTest, SeesNanAndInfinityAtEveryPlaceAndStillGivesAnId) {
  for (size_t at = 0; at < 70; ++at) {
    for (float bad : {kNan, -kNan, kInf}) {
      std::vector<float> row(70, 1.0f);
      row[at] = bad;

      const RowPeak peak = find(row);

      ASSERT_TRUE(peak.unusable) << at;
      ASSERT_EQ(peak.index, bad == kInf ? static_cast<int32_t>(at) : (at == 0 ? 1 : 0));
    }
  }
}

TEST_P(PeakTest, NothingAboveMinusInfinityGivesIdZero) {
  EXPECT_EQ(find(std::vector<float>(37, -kInf)).index, 0);
  EXPECT_EQ(find(std::vector<float>(37, kNan)).index, 0);
  EXPECT_EQ(find({kNan, -kInf}).index, 0);
  EXPECT_EQ(find({}).index, 0);
  EXPECT_FALSE(find(std::vector<float>(37, -kInf)).unusable);
}

INSTANTIATE_TEST_SUITE_P(Variants,
                         PeakTest,
                         testing::Values(Isa::kPortable, Isa::kAvx512),
                         [](const auto& isa) { return std::string(isa_name(isa.param)); });

}  // namespace
}  // namespace fathom
