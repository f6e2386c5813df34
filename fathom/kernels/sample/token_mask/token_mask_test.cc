#include "fathom/kernels/sample/token_mask/token_mask.h"

#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/core/launch.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

constexpr float kOff = -std::numeric_limits<float>::infinity();

class TokenMaskTest : public testing::Test {
 protected:
  Status run(int64_t num_masks, int64_t words) {
    return launch<ApplyTokenMask>(
        runner.exec(), "sampler",
        {.logits = make_view(logits.data(), {2, 34}, Format::kF32),
         .mask = make_view(mask.data(), {num_masks, words}, Format::kI32),
         .mask_of_row = make_view(mask_of_row.data(), {2}, Format::kI32)});
  }

  CaseRunner runner{cpu_kernels(), 1};
  std::vector<float> logits = std::vector<float>(68, 1.0f);
  std::vector<uint32_t> mask = {5u, 2u, UINT32_MAX, UINT32_MAX};
  std::vector<int32_t> mask_of_row = {0, -1};
};

TEST_F(TokenMaskTest, KeepsTheTokensWhoseBitIsSetAndRowsWithoutAMask) {
  ASSERT_TRUE(run(2, 2).ok());

  std::vector<float> expected(68, 1.0f);
  for (size_t v = 0; v < 34; ++v)
    if (v != 0 && v != 2 && v != 33) expected[v] = kOff;
  EXPECT_EQ(logits, expected);
}

TEST_F(TokenMaskTest, RowsMayShareAMask) {
  mask_of_row = {0, 0};

  ASSERT_TRUE(run(2, 2).ok());

  EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + 34, logits.begin() + 34));
  EXPECT_EQ(logits[35], kOff);
}

TEST_F(TokenMaskTest, RefusesMasksThatAreTooShortOrNotThere) {
  const auto refuses = [&](int64_t num_masks, int64_t words, std::string_view text) {
    return run(num_masks, words).message().find(text) != std::string::npos;
  };
  EXPECT_TRUE(refuses(4, 1, "mask has 1 words a row, expected 2 for 34 logits"));
  mask_of_row = {0, 2};
  EXPECT_TRUE(refuses(2, 2, "mask_of_row[1] is 2, expected -1 to 1"));
  mask_of_row = {-2, 0};
  EXPECT_TRUE(refuses(2, 2, "mask_of_row[0] is -2, expected -1 to 1"));
}

}  // namespace
}  // namespace fathom
