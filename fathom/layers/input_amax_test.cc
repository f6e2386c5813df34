#include "fathom/layers/input_amax.h"

#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

View amax_of(float* values, int64_t count) {
  return make_view(values, {count}, Format::kF32);
}

TEST(InputAmax, IsTheLargestMagnitudeOfTheRowsAndOfCallsBefore) {
  std::array<float, 8> wide = {1, -3, 99, 99, 2, 0.5, 99, 99};  // rows of two in rows of four
  View x = make_view(wide.data(), {2, 2}, Format::kF32);
  x.strides[0] = 4;
  float amax = -1;

  note_input_amax(x, amax_of(&amax, 1));
  EXPECT_EQ(amax, 3);

  wide[1] = 0;
  note_input_amax(x, amax_of(&amax, 1));
  EXPECT_EQ(amax, 3);
}

TEST(InputAmax, ReadsBf16) {
  std::array<Bf16, 3> x = {bf16_from_float(0.25f), bf16_from_float(-1.5f), bf16_from_float(1.0f)};
  float amax = 0;

  note_input_amax(make_view(x.data(), {1, 3}, Format::kBf16), amax_of(&amax, 1));

  EXPECT_EQ(amax, 1.5f);
}

TEST(InputAmax, KeepsWhatIsNotFinite) {
  std::array<float, 3> x = {1, std::numeric_limits<float>::quiet_NaN(), 7};
  float amax = 0;
  note_input_amax(make_view(x.data(), {1, 3}, Format::kF32), amax_of(&amax, 1));
  x[1] = 1;
  note_input_amax(make_view(x.data(), {1, 3}, Format::kF32), amax_of(&amax, 1));

  EXPECT_TRUE(std::isnan(amax));
}

TEST(InputAmax, OfExpertsGoesByTheirRows) {
  std::array<float, 8> x = {1, 2, 3, -4, 5, 6, 70, 80};  // the last row is nobody's
  std::array<int32_t, 4> offsets = {0, 1, 1, 3};
  std::array<float, 3> amax = {-1, -1, -1};

  note_expert_amax(make_view(x.data(), {4, 2}, Format::kF32),
                   make_view(offsets.data(), {4}, Format::kI32), amax_of(amax.data(), 3));

  EXPECT_EQ(amax, (std::array<float, 3>{2, -1, 6}));
}

}  // namespace
}  // namespace fathom
