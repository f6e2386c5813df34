#include "fathom/formats/block/mxfp4_as_nvfp4.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/formats/block/block_fp4.h"

namespace fathom {
namespace {

using testing::HasSubstr;

constexpr int64_t kColumns = 32 * 18;

// A row whose blocks have all exponents that one global scale reaches.
struct Row {
  std::vector<uint8_t> packed = std::vector<uint8_t>(kColumns / 2);
  std::vector<uint8_t> scales;

  explicit Row(int least) {
    Rng rng(5);
    for (uint8_t& byte : packed)
      byte = static_cast<uint8_t>(rng.next_below(256)) | 1;
    for (int e = least; e < least + 18; ++e)
      scales.push_back(static_cast<uint8_t>(127 + e));
  }
};

std::vector<float> as_mxfp4(const Row& row) {
  std::vector<float> out(kColumns);
  std::vector<Ue8m0> scales;
  for (const uint8_t byte : row.scales)
    scales.push_back(Ue8m0{byte});
  mxfp4_dequantize(row.packed.data(), scales.data(), 1, kColumns, out.data());
  return out;
}

TEST(Mxfp4AsNvfp4, KeepsEveryWeight) {
  for (const int least : {-30, -9, 0, 40}) {
    const Row row(least);
    const int g = mxfp4_global_exponent(largest_mxfp4_exponent(row.scales).value());
    std::vector<uint8_t> bytes(kColumns / 16);

    ASSERT_TRUE(mxfp4_scales_to_nvfp4(row.packed.data(), row.scales, kColumns, g, bytes).ok());

    std::vector<E4m3> scales;
    for (const uint8_t byte : bytes)
      scales.push_back(E4m3{byte});
    std::vector<float> out(kColumns);
    nvfp4_dequantize(row.packed.data(), scales.data(), std::ldexp(1.0f, g), 1, kColumns,
                     out.data());
    EXPECT_EQ(out, as_mxfp4(row)) << least;
  }
}

TEST(Mxfp4AsNvfp4, NamesTheBlockThatIsTooSmall) {
  Row row(-10);
  row.scales[3] = 127 - 20;  // the largest is 2^7, so 2^-10 is the least
  std::vector<uint8_t> bytes(kColumns / 16);

  const Status status = mxfp4_scales_to_nvfp4(row.packed.data(), row.scales, kColumns, -1, bytes);

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 3 is 2^-20"));
}

TEST(Mxfp4AsNvfp4, ZerosMayHaveAnyScale) {
  Row row(-10);
  row.scales[3] = 0;
  std::fill_n(row.packed.begin() + 3 * 16, 16, uint8_t{0x80});  // zeros of either sign
  std::vector<uint8_t> bytes(kColumns / 16, 0xFF);

  ASSERT_TRUE(mxfp4_scales_to_nvfp4(row.packed.data(), row.scales, kColumns, -1, bytes).ok());

  EXPECT_EQ(bytes[6], 0);
  EXPECT_EQ(bytes[7], 0);
}

TEST(Mxfp4AsNvfp4, RefusesNaN) {
  EXPECT_EQ(largest_mxfp4_exponent(std::vector<uint8_t>{1, 255, 3}).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(largest_mxfp4_exponent(std::vector<uint8_t>{}).value(), -127);
}

}  // namespace
}  // namespace fathom
