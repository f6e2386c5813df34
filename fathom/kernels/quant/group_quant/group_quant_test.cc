#include "fathom/kernels/quant/group_quant/group_quant.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/integer/group_int.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/conformance/operands/generate.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

/// Rows of every kind of test data, over a wide range of sizes that f16 can hold.
void fill_with_all_kinds(TestTensor& x, Rng& rng) {
  const int64_t D = x.view().dim(1);
  std::vector<float> row(static_cast<size_t>(D));
  for (int64_t t = 0; t < x.view().dim(0); ++t) {
    const double scale = std::ldexp(1.0, static_cast<int>(rng.next_below(14)) - 8);
    generate_row({.dist = Dist::kMixedRows, .scale = scale}, t, rng, row);
    for (int64_t d = 0; d < D; ++d)
      x.set(t * D + d, row[static_cast<size_t>(d)]);
  }
}

/// A call with row-major scales.
struct Call {
  TestTensor x;
  TestTensor q;
  TestTensor s;
  int64_t group;

  Call(int64_t T, int64_t D, int64_t group_size, Format in, Format out)
      : x({T, D}, in), q({T, D}, out), s({T, D / group_size}, Format::kF32), group(group_size) {}

  GroupQuantArgs args() const {
    return {.x = as_one_expert(x.view()),
            .masked_rows = {},
            .q = as_one_expert(q.view()),
            .s = as_one_expert(s.view()),
            .group_size = group};
  }

  double scale_of(int64_t i) const { return double{s[i / group]}; }
};

Status run(TestExec& ex, const std::string& variant, const GroupQuantArgs& args) {
  return launch<GroupQuant8Bit>(ex.with("group_quant_8bit", variant), "test", args);
}

TEST(GroupQuant, GivesTheBitsOfTheFormatsRecipes) {
  TestExec ex;
  Rng rng(31, 1);
  constexpr int64_t T = 12, D = 384;
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (int64_t group : {16, 48, 128}) {
      for (const bool round_up : {false, true}) {
        for (const bool divide : {true, false}) {
          Call call(T, D, group, format, Format::kE4m3);
          fill_with_all_kinds(call.x, rng);
          Fp8QuantOptions options = divide ? kFp8SglangGroup : kFp8SglangGroupV2;
          if (round_up) options.rounding = Fp8QuantOptions::Rounding::kPowerOfTwoUp;
          std::vector<E4m3> codes(T * D);
          std::vector<float> scales(static_cast<size_t>(T * D / group));
          fp8_quantize_groups(call.x.values().data(), T, D, group, options, codes.data(),
                              scales.data());
          for (const std::string& variant : variants_of<GroupQuant8Bit>()) {
            GroupQuantArgs args = call.args();
            args.recipe = divide ? GroupRecipe::kDivide : GroupRecipe::kMultiply;
            if (round_up) args.rounding = GroupScaleRounding::kPowerOfTwoUp;
            FATHOM_EXPECT_OK(run(ex, variant, args));

            EXPECT_EQ(call.s.values(), scales) << variant;
            for (size_t i = 0; i < codes.size(); ++i) {
              ASSERT_EQ(call.q.view().as<E4m3>()[i], codes[i])
                  << variant << ", " << format_name(format) << ", group " << group;
            }
          }
        }
      }
    }
  }
}

TEST(GroupQuant, GivesTheBitsOfTheInt8Recipe) {
  TestExec ex;
  Rng rng(32, 1);
  constexpr int64_t T = 18, D = 256;
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    Call call(T, D, 64, format, Format::kI8);
    fill_with_all_kinds(call.x, rng);
    std::vector<int8_t> codes(T * D);
    std::vector<float> scales(T * D / 64);
    int8_quantize_groups(call.x.values().data(), T, D, 64, codes.data(), scales.data());
    for (const std::string& variant : variants_of<GroupQuant8Bit>()) {
      FATHOM_EXPECT_OK(run(ex, variant, call.args()));

      EXPECT_EQ(call.s.values(), scales) << variant;
      for (size_t i = 0; i < codes.size(); ++i)
        ASSERT_EQ(call.q.view().as<int8_t>()[i], codes[i]) << variant << ", element " << i;
    }
  }
}

TEST(GroupQuant, DequantisesWithinTheBoundOfTheFormat) {
  TestExec ex;
  Rng rng(33, 1);
  constexpr int64_t T = 60, D = 256;
  for (const Format q : {Format::kE4m3, Format::kI8}) {
    for (const GroupRecipe recipe : {GroupRecipe::kDivide, GroupRecipe::kMultiply}) {
      for (const GroupScaleRounding rounding :
           {GroupScaleRounding::kNone, GroupScaleRounding::kPowerOfTwoUp}) {
        for (const std::string& variant : variants_of<GroupQuant8Bit>()) {
          Call call(T, D, 128, Format::kBf16, q);
          fill_with_all_kinds(call.x, rng);
          GroupQuantArgs args = call.args();
          args.recipe = recipe;
          args.rounding = rounding;
          FATHOM_EXPECT_OK(run(ex, variant, args));

          for (int64_t i = 0; i < T * D; ++i) {
            const double s = call.scale_of(i);
            const double value = double{call.x[i]};
            // Half a step of E4M3, a whole one of a truncated int8.
            const double bound =
                q == Format::kI8 ? s * (1 + 1e-5)
                                 : std::max(std::fabs(value) * 0x1p-4, s * 0x1p-10) * (1 + 1e-6);
            ASSERT_NEAR(double{call.q[i]} * s, value, bound) << variant << ", element " << i;
          }
        }
      }
    }
  }
}

TEST(GroupQuant, LayoutsHoldTheSameScales) {
  TestExec ex;
  Rng rng(34, 1);
  constexpr int64_t T = 6, D = 7 * 32, G = 7, kStride = 8;
  Call call(T, D, 32, Format::kBf16, Format::kE4m3);
  fill_with_all_kinds(call.x, rng);
  for (const std::string& variant : variants_of<GroupQuant8Bit>()) {
    GroupQuantArgs args = call.args();
    args.rounding = GroupScaleRounding::kPowerOfTwoUp;
    FATHOM_EXPECT_OK(run(ex, variant, args));
    const TestTensor columns({1, G, kStride}, Format::kF32, -1.0f);
    const TestTensor packed({1, 2, kStride}, Format::kI32, -1.0f);

    args.layout = GroupScaleLayout::kColumnMajor;
    args.s = slice_cols(columns.view(), 0, T);
    FATHOM_EXPECT_OK(run(ex, variant, args));
    args.layout = GroupScaleLayout::kPackedUe8m0;
    args.s = slice_cols(packed.view(), 0, T);
    FATHOM_EXPECT_OK(run(ex, variant, args));

    std::vector<float> linear(T * G);
    scales_from_column_major(columns.view().as<float>(), T, G, kStride, linear.data());
    EXPECT_EQ(linear, call.s.values());
    std::vector<Ue8m0> bytes(T * G);
    scales_from_packed_ue8m0(packed.view().as<uint32_t>(), T, G, bytes.data());
    for (int64_t i = 0; i < T * G; ++i)
      EXPECT_EQ(to_float(bytes[static_cast<size_t>(i)]), call.s[i]);
    for (int64_t t = 0; t < T; ++t)
      EXPECT_EQ(packed.view().as<uint32_t>()[kStride + t] >> 24, 0u) << "the eighth group is none";
    EXPECT_EQ(columns[kStride - 1], -1.0f) << "padding is left alone";
    EXPECT_EQ(packed[kStride - 1], -1.0f);
  }
}

TEST(GroupQuant, ColumnMajorScalesOfATokenDoNotDependOnTheOthers) {
  TestExec ex;
  Rng rng(35, 1);
  constexpr int64_t T = 9, D = 64, G = 4;
  Call call(T, D, 16, Format::kBf16, Format::kE4m3);
  fill_with_all_kinds(call.x, rng);
  for (const std::string& variant : variants_of<GroupQuant8Bit>()) {
    const TestTensor whole({1, G, T}, Format::kF32);
    const TestTensor alone({1, G, T}, Format::kF32);
    GroupQuantArgs args = call.args();
    args.layout = GroupScaleLayout::kColumnMajor;
    args.s = whole.view();
    FATHOM_EXPECT_OK(run(ex, variant, args));
    for (int64_t t = 0; t < T; ++t) {
      args.x = as_one_expert(slice_rows(call.x.view(), t, 1));
      args.q = as_one_expert(slice_rows(call.q.view(), t, 1));
      args.s = slice_cols(alone.view(), t, 1);
      FATHOM_EXPECT_OK(run(ex, variant, args));
    }

    EXPECT_EQ(whole.bytes(), alone.bytes());
  }
}

TEST(GroupQuant, FusedIsTheActivationAndThenTheQuantisation) {
  TestExec ex;
  Rng rng(36, 1);
  constexpr int64_t T = 5, D = 96;
  for (const std::string& variant : variants_of<GroupQuant8Bit>()) {
    Call fused(T, D, 32, Format::kF32, Format::kE4m3);
    TestTensor x({T, 2 * D}, Format::kF32);
    fill_with_all_kinds(x, rng);
    GroupQuantArgs args = fused.args();
    args.x = as_one_expert(x.view());
    args.input = GroupInput::kSiluMul;
    FATHOM_EXPECT_OK(run(ex, variant, args));

    const Call apart(T, D, 32, Format::kF32, Format::kE4m3);
    FATHOM_EXPECT_OK(launch<SiluMul>(ex.with("silu_mul", variant), "test",
                                     {.x = x.view(), .y = apart.x.view()}));
    FATHOM_EXPECT_OK(run(ex, variant, apart.args()));

    EXPECT_EQ(fused.q.bytes(), apart.q.bytes()) << "float32 has no rounding between the steps";
    EXPECT_EQ(fused.s.bytes(), apart.s.bytes());
  }
}

TEST(GroupQuant, ZerosHaveCodesZeroAndTheScaleOfEps) {
  TestExec ex;
  for (const std::string& variant : variants_of<GroupQuant8Bit>()) {
    for (const Format q : {Format::kE4m3, Format::kI8}) {
      const Call call(1, 32, 16, Format::kBf16, q);
      FATHOM_EXPECT_OK(run(ex, variant, call.args()));

      EXPECT_EQ(call.s[1], 1e-10f / (q == Format::kI8 ? 127.0f : 448.0f));
      for (int64_t i = 0; i < 32; ++i)
        EXPECT_EQ(call.q[i], 0.0f);
    }
  }
}

TEST(GroupQuant, NanAndInfinityStayInTheirGroup) {
  TestExec ex;
  for (const std::string& variant : variants_of<GroupQuant8Bit>()) {
    for (const Format q : {Format::kE4m3, Format::kI8}) {
      for (const bool round_up : {false, true}) {
        Call call(1, 48, 16, Format::kBf16, q);
        call.x.set(0, NAN);
        call.x.set(1, 1.0f);
        call.x.set(16, -INFINITY);
        call.x.set(17, 1.0f);
        call.x.set(32, 2.0f);
        GroupQuantArgs args = call.args();
        if (round_up) args.rounding = GroupScaleRounding::kPowerOfTwoUp;
        FATHOM_EXPECT_OK(run(ex, variant, args));

        const float most = q == Format::kI8 ? 127.0f : 448.0f;
        const auto scale = [&](float amax) {
          return round_up ? to_float(ue8m0_round_up(amax / most)) : amax / most;
        };
        EXPECT_EQ(call.s[0], scale(1.0f));
        EXPECT_EQ(call.s[1], round_up ? 0x1p127f : INFINITY);
        EXPECT_EQ(call.s[2], scale(2.0f));
        const float code_of_nan = call.q[0];
        EXPECT_TRUE(q == Format::kI8 ? code_of_nan == 0.0f : std::isnan(code_of_nan));
        EXPECT_EQ(call.q[17], 0.0f);
        if (round_up) {
          EXPECT_EQ(call.q[16], q == Format::kI8 ? -128.0f : -448.0f);
        } else {
          EXPECT_TRUE(q == Format::kI8 ? call.q[16] == 0.0f : std::isnan(call.q[16]));
        }
      }
    }
  }
}

TEST(GroupQuant, ReferenceNamesReachTheThreeKernels) {
  for (const char* name : {"sgl_per_token_group_quant_fp8", "sgl_per_token_group_quant_int8",
                           "sgl_per_token_group_quant_8bit"}) {
    EXPECT_NE(find_kernel(name), nullptr) << name;
  }
}

TEST(GroupQuant, RefusesWhatTheLayoutDoesNotHold) {
  TestExec ex;
  const Call call(3, 32, 16, Format::kBf16, Format::kE4m3);
  const auto message = [&](auto change) {
    GroupQuantArgs args = call.args();
    change(args);
    return launch<GroupQuantFp8>(*ex, "test", args).message();
  };
  const auto expect = [](const std::string& found, std::string_view part) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };

  expect(message([](auto& a) { a.group_size = 12; }), "which group_size 12 does not divide");
  expect(message([](auto& a) { a.group_size = 0; }), "group_size is 0 but must be 1..4096");
  expect(message([](auto& a) { a.layout = GroupScaleLayout::kColumnMajor; }),
         "its layout needs [E, 2, 3]");
  expect(message([](auto& a) { a.layout = GroupScaleLayout::kPackedUe8m0; }),
         "s is f32 but its layout is in i32");
  expect(message([](auto& a) { a.input = GroupInput::kSiluMul; }), "D=32 needs 64, gate and up");
  expect(message([](auto& a) { a.eps = 0.0f; }), "eps is 0");
  expect(message([](auto& a) { a.q_max = 449.0f; }), "are limited to 0..449");
}

TEST(GroupQuant, RefusesCountsOfRowsThatAreNotThere) {
  TestExec ex;
  const Call call(3, 32, 16, Format::kBf16, Format::kE4m3);
  for (float bad : {-1.0f, 4.0f}) {
    const TestTensor rows({1}, Format::kI32, bad);
    GroupQuantArgs args = call.args();
    args.masked_rows = rows.view();

    const Status status = launch<GroupQuantFp8>(*ex, "test", args);

    EXPECT_NE(status.message().find("but x has rows 0..2"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace fathom
