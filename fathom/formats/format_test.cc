#include "fathom/formats/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using ::testing::HasSubstr;

TEST(Format, NameAndParseAreInversesForEveryFormat) {
  for (int i = 1; i < kNumFormats; ++i) {
    const auto format = static_cast<Format>(i);
    const Result<Format> parsed = parse_format(format_name(format));
    ASSERT_TRUE(parsed.ok()) << format_name(format);
    EXPECT_EQ(*parsed, format);
  }
}

TEST(Format, NamesAreThoseOfSignatures) {
  EXPECT_EQ(format_name(Format::kBf16), "bf16");
  EXPECT_EQ(format_name(Format::kNvfp4), "nvfp4");
  EXPECT_EQ(format_name(Format::kFp8BlockUe8m0), "fp8_block_ue8m0");
  EXPECT_EQ(format_name(Format::kW4a8Group), "w4a8_group");
  EXPECT_EQ(format_name(Format::kW4Fp8), "w4_fp8");
  EXPECT_EQ(format_name(Format::kBool), "bool");
}

TEST(Format, ParsesTheSpellingsOfSafetensorsAndFrameworks) {
  const struct {
    const char* name;
    Format format;
  } cases[] = {{"F32", Format::kF32},       {"BF16", Format::kBf16},
               {"F16", Format::kF16},       {"F8_E4M3", Format::kE4m3},
               {"F8_E5M2", Format::kE5m2},  {"F8_E8M0", Format::kUe8m0},
               {"U8", Format::kU8},         {"I8", Format::kI8},
               {"I32", Format::kI32},       {"I64", Format::kI64},
               {"BOOL", Format::kBool},     {"float32", Format::kF32},
               {"float16", Format::kF16},   {"bfloat16", Format::kBf16},
               {"fp8_e4m3", Format::kE4m3}, {"float8_e4m3fn", Format::kE4m3}};

  for (const auto& [name, format] : cases) {
    const Result<Format> parsed = parse_format(name);
    ASSERT_TRUE(parsed.ok()) << name;
    EXPECT_EQ(*parsed, format) << name;
  }
}

TEST(Format, RefusesUnknownNamesAndListsTheKnown) {
  for (const char* name : {"", "none", "f", "bf16 ", "q4_0", "f128"}) {
    const Result<Format> parsed = parse_format(name);
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr(str_cat("\"", name, "\"")));
    EXPECT_THAT(parsed.status().message(), HasSubstr("nvfp4"));
  }
}

TEST(Format, OnlyFormatsWithScalesAreQuantised) {
  for (int i = 0; i < kNumFormats; ++i) {
    EXPECT_EQ(is_quantised(static_cast<Format>(i)), i >= static_cast<int>(Format::kNvfp4)) << i;
  }
}

TEST(Format, CountsBytesOfDenseMatrices) {
  EXPECT_EQ(bytes_for(Format::kF32, 3, 5), 60);
  EXPECT_EQ(bytes_for(Format::kBf16, 129280, 7168), int64_t{129280} * 7168 * 2);
  EXPECT_EQ(bytes_for(Format::kI64, 1, 1), 8);
  EXPECT_EQ(bytes_for(Format::kBool, 2, 3), 6);
  EXPECT_EQ(bytes_for(Format::kNone, 2, 3), 0);
}

TEST(Format, CountsBytesOfQuantisedMatricesByTheFormulaOfEachFormat) {
  constexpr int64_t n = 2048, k = 7168;
  EXPECT_EQ(bytes_for(Format::kNvfp4, n, k), n * k * 9 / 16 + 4);
  EXPECT_EQ(bytes_for(Format::kMxfp4, n, k), n * k * 17 / 32);
  EXPECT_EQ(bytes_for(Format::kMxfp8, n, k), n * k * 33 / 32);
  EXPECT_EQ(bytes_for(Format::kFp8Block, n, k), n * k + 4 * (n / 128) * (k / 128));
  EXPECT_EQ(bytes_for(Format::kFp8BlockUe8m0, n, k), n * k + (n / 128) * (k / 128));
  EXPECT_EQ(bytes_for(Format::kFp8Group, n, k), n * k + 4 * n * (k / 128));
  EXPECT_EQ(bytes_for(Format::kFp8GroupUe8m0, n, k), n * k + n * (k / 128));
  EXPECT_EQ(bytes_for(Format::kFp8Channel, n, k), n * k + 4 * n);
  EXPECT_EQ(bytes_for(Format::kFp8Tensor, n, k), n * k + 4);
  EXPECT_EQ(bytes_for(Format::kInt8Channel, n, k), n * k + 4 * n);
  EXPECT_EQ(bytes_for(Format::kW4a8Channel, n, k), n * k / 2 + 4 * n);
  EXPECT_EQ(bytes_for(Format::kW4a8Group, n, k), n * k / 2 + 2 * n * (k / 128) + 2 * n);
  EXPECT_EQ(bytes_for(Format::kW4Fp8, n, k), n * k / 2 + 4 * n * (k / 128));
}

TEST(Format, CountsPartialBlocksWhole) {
  // kv_a_proj_with_mqa: 576 rows are four and a half blocks.
  EXPECT_EQ(scale_count_for(Format::kFp8Block, 576, 7168), 5 * 56);
  EXPECT_EQ(bytes_for(Format::kFp8Block, 576, 7168), 576 * 7168 + 4 * 5 * 56);
  EXPECT_EQ(scale_count_for(Format::kNvfp4, 3, 17), 3 * 2);
  EXPECT_EQ(scale_count_for(Format::kFp8Group, 3, 1), 3);
  EXPECT_EQ(scale_count_for(Format::kBf16, 3, 1), 0);
}

TEST(Format, RoundsPackedRowsUpToBytes) {
  EXPECT_EQ(value_bytes_for(Format::kNvfp4, 3, 5), 9);
  EXPECT_EQ(value_bytes_for(Format::kNvfp4, 3, 6), 9);
  EXPECT_EQ(value_bytes_for(Format::kW4Fp8, 1, 1), 1);
}

TEST(Format, MatricesWithoutValuesTakeNoBytes) {
  for (int i = 0; i < kNumFormats; ++i) {
    const auto format = static_cast<Format>(i);
    EXPECT_EQ(bytes_for(format, 0, 128), 0) << format_name(format);
    EXPECT_EQ(bytes_for(format, 128, 0), 0) << format_name(format);
    EXPECT_EQ(scale_count_for(format, 0, 128), 0) << format_name(format);
  }
}

}  // namespace
}  // namespace fathom
