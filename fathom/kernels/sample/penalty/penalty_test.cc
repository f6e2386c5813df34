#include "fathom/kernels/sample/penalty/penalty.h"

#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/core/launch.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class PenaltyTest : public testing::Test {
 protected:
  static View ints(std::vector<int32_t>& v) {
    return make_view(v.data(), {static_cast<int64_t>(v.size())}, Format::kI32);
  }

  static View floats(std::vector<float>& v) {
    return make_view(v.data(), {static_cast<int64_t>(v.size())}, Format::kF32);
  }

  Status run() {
    return launch<Penalty>(runner.exec(), "sampler",
                           {.logits = make_view(logits.data(), {1, 4}, Format::kF32),
                            .tokens = ints(tokens),
                            .counts = ints(counts),
                            .token_offsets = ints(token_offsets),
                            .presence = floats(presence),
                            .frequency = floats(frequency),
                            .repetition = floats(repetition),
                            .bias_tokens = ints(bias_tokens),
                            .bias_values = floats(bias_values),
                            .bias_offsets = ints(bias_offsets)});
  }

  CaseRunner runner{cpu_kernels(), 1};
  std::vector<float> logits = {2, -2, 4, 1};
  std::vector<int32_t> tokens = {0, 1, 2};
  std::vector<int32_t> counts = {3, 1, 0};
  std::vector<int32_t> token_offsets = {0, 3};
  std::vector<float> presence = {0}, frequency = {0}, repetition = {1};
  std::vector<int32_t> bias_tokens, bias_offsets = {0, 0};
  std::vector<float> bias_values;
};

TEST_F(PenaltyTest, NeutralValuesChangeNothing) {
  const std::vector<float> before = logits;

  ASSERT_TRUE(run().ok());

  EXPECT_EQ(logits, before);
}

TEST_F(PenaltyTest, RepetitionLowersPositiveAndNegativeLogitsOfPromptAndOutput) {
  repetition = {2};

  ASSERT_TRUE(run().ok());

  EXPECT_EQ(logits, (std::vector<float>{1, -4, 2, 1}));
}

TEST_F(PenaltyTest, FrequencyCountsAndPresenceDoesNotAndThePromptCountsForNeither) {
  frequency = {0.5f};
  presence = {10};

  ASSERT_TRUE(run().ok());

  EXPECT_EQ(logits, (std::vector<float>{2 - 1.5f - 10, -2 - 0.5f - 10, 4, 1}));
}

TEST_F(PenaltyTest, BiasComesLastAndCanBan) {
  repetition = {2};
  bias_tokens = {0, 3};
  bias_values = {100, -kInf};
  bias_offsets = {0, 2};

  ASSERT_TRUE(run().ok());

  EXPECT_EQ(logits, (std::vector<float>{101, -4, 2, -kInf}));
}

TEST_F(PenaltyTest, RefusesListsThatPointOutside) {
  const auto has = [&](std::string_view text) {
    return run().message().find(text) != std::string::npos;
  };
  tokens[1] = 4;
  EXPECT_TRUE(has("tokens[1] is 4, expected 0 to 3"));
  tokens[1] = -1;
  EXPECT_TRUE(has("tokens[1] is -1"));
  tokens[1] = 1;
  token_offsets = {0, 4};
  EXPECT_TRUE(has("token_offsets[1] is 4, expected 0 to 3"));
  token_offsets = {2, 1};
  EXPECT_TRUE(has("token_offsets[1] is 1, expected 2 to 3"));
  token_offsets = {0, 3};
  bias_offsets = {0, 1};
  EXPECT_TRUE(has("bias_offsets[1] is 1, expected 0 to 0"));
  bias_offsets = {0, 0};
  repetition = {0};
  EXPECT_TRUE(has("repetition[0] is 0, expected a positive number"));
}

}  // namespace
}  // namespace fathom
