#include "fathom/weights/load/tensor_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_checkpoint.h"

namespace fathom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (const int v : values)
    out.push_back(static_cast<std::byte>(v));
  return out;
}

TEST(CutColumns, TakesTheSameBytesOfEveryRow) {
  const auto rows = bytes_of({1, 2, 3, 4, 5, 11, 12, 13, 14, 15, 21, 22, 23, 24, 25});
  std::vector<std::byte> out(6);

  cut_columns(rows, 5, 2, 2, out);

  EXPECT_EQ(out, bytes_of({3, 4, 13, 14, 23, 24}));
}

TEST(ConvertFloats, WidensBf16AndCopiesTheRest) {
  const auto bf16 = bytes_of({0x80, 0x3F, 0x00, 0xC0});
  std::vector<float> wide(2);
  ASSERT_TRUE(
      convert_floats(Format::kBf16, Format::kF32, bf16, std::as_writable_bytes(std::span(wide)))
          .ok());
  EXPECT_THAT(wide, ElementsAre(1.0f, -2.0f));

  std::vector<std::byte> same(4);
  ASSERT_TRUE(convert_floats(Format::kE4m3, Format::kE4m3, bf16, same).ok());
  EXPECT_EQ(same, bf16);

  const Status refused = convert_floats(Format::kF16, Format::kF32, bf16, same);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr("stored as f16, expected f32"));
}

// One row of 256 columns in blocks of 128: the second half has the second scale.
TEST(TensorReader, ReadsThePartOfARank) {
  TestCheckpoint files;
  files.stored("x.weight", 256, 256, Format::kFp8Block);
  const Checkpoint checkpoint = files.open();
  WeightSpec spec;
  spec.name = "x.weight";
  spec.axes = "N,K";
  spec.dims = {256, 256};
  std::vector<std::byte> values(256 * 256);
  std::vector<std::byte> scales(16);
  ASSERT_TRUE(checkpoint.read(*checkpoint.find("x.weight"), values).ok());
  ASSERT_TRUE(checkpoint.read(*checkpoint.find("x.weight_scale_inv"), scales).ok());
  std::vector<std::byte> out(256);
  std::vector<std::byte> scale(4);
  std::vector<std::byte> staging(2 * 256);

  spec.part = {.axis = 1, .begin = 128, .count = 128};
  const TensorReader columns = TensorReader::open(checkpoint, spec).value();
  ASSERT_EQ(columns.staged_row_bytes(), 256);
  ASSERT_TRUE(columns.values(200, 2, out, staging).ok());
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 128, values.begin() + 200 * 256 + 128));
  EXPECT_TRUE(std::equal(out.begin() + 128, out.end(), values.begin() + 201 * 256 + 128));
  ASSERT_TRUE(columns.scales(Format::kF32, 1, 1, scale).ok());
  EXPECT_TRUE(std::equal(scale.begin(), scale.end(), scales.begin() + 12)) << "of row 1, column 1";

  spec.part = {.axis = 0, .begin = 128, .count = 128};
  const TensorReader rows = TensorReader::open(checkpoint, spec).value();
  ASSERT_EQ(rows.rows(), 128);
  ASSERT_TRUE(rows.values(5, 1, out, {}).ok());
  EXPECT_TRUE(std::equal(out.begin(), out.end(), values.begin() + 133 * 256));
  ASSERT_TRUE(rows.scales(Format::kF32, 0, 1, std::span(staging).first(8)).ok());
  EXPECT_TRUE(std::equal(staging.begin(), staging.begin() + 8, scales.begin() + 8));
}

}  // namespace
}  // namespace fathom
