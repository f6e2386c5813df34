#include "fathom/formats/format_choice.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr FormatChoice kChoices[] = {
    {"nvfp4", Format::kNvfp4}, {"int8", Format::kInt8Channel}, {"bf16", Format::kBf16}};

TEST(FormatChoice, IsFoundByItsNameAndOtherSpellings) {
  EXPECT_EQ(*choose_format("nvfp4", kChoices), Format::kNvfp4);
  EXPECT_EQ(*choose_format("INT8", kChoices), Format::kInt8Channel);
  EXPECT_EQ(*choose_format("int8_channel", kChoices), Format::kInt8Channel);
  EXPECT_EQ(*choose_format("bfloat16", kChoices), Format::kBf16);
}

TEST(FormatChoice, RefusalListsTheChoicesAlone) {
  EXPECT_EQ(choose_format("q4_k_m", kChoices).status().message(),
            "found 'q4_k_m', expected nvfp4, int8 or bf16");
  EXPECT_EQ(choose_format("nvfp5", kChoices).status().message(),
            "found 'nvfp5', expected nvfp4, int8 or bf16\nhint: did you mean nvfp4?");
  EXPECT_EQ(choose_format("i8", kChoices).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(choose_format("", kChoices).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
