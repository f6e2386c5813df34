#include "fathom/report/axis_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::HasSubstr;

constexpr Signature kProduct = parse_signature(
    "x[T,K]:bf16 w[N,K]:bf16 w_scales?[N]:f32 g?[G,N]:i8 -> y[T,N]:bf16 z?[T,2*N]:bf16");
constexpr std::string_view kLimits = "K%8==0, K==128*G";

class AxisNames : public testing::Test {
 protected:
  AxisNames() {
    model_.set("H", 7168);
    model_.set("I", 2048);
    record_.op = Op("gate_up_proj");
    record_.kernel = "product";
    record_.num_operands = 6;
    set(0, "x", {5, 7168}, "T,H");
    set(1, "w", {4096, 7168}, "2*I,H");
    set(4, "y", {5, 4096}, nullptr);
  }

  void set(size_t i, const char* name, std::vector<int64_t> dims, const char* axes) {
    OperandRecord& o = record_.operands[i];
    o.name = name;
    o.name_length = static_cast<uint8_t>(std::string_view(name).size());
    o.format = Format::kBf16;
    o.rank = static_cast<uint8_t>(dims.size());
    std::copy(dims.begin(), dims.end(), o.dims.begin());
    o.axes = axes;
  }

  Result<NamedAxes> run() { return name_axes(record_, kProduct, kLimits, model_); }

  std::string text(const NamedAxes& names, size_t operand, size_t axis) {
    return names.operands[operand][axis].text;
  }

  SymbolTable model_;
  OpRecord record_;
};

TEST_F(AxisNames, TieCarriesTheNameOfAWeightToTheResult) {
  const auto names = run();

  ASSERT_TRUE(names.ok()) << names.status().message();
  EXPECT_EQ(text(*names, 4, 0), "T");
  EXPECT_EQ(text(*names, 4, 1), "2*I");
  EXPECT_EQ(names->operands[4][1].number, "4096");
  EXPECT_TRUE(names->operands[4][1].fixed);
  EXPECT_FALSE(names->operands[4][0].fixed);
  EXPECT_EQ(names->step.at("T"), 5);
}

TEST_F(AxisNames, NameOfAnotherSizeYieldsToTheTie) {
  set(4, "y", {5, 4096}, "T,I");

  const auto names = run();

  ASSERT_TRUE(names.ok());
  EXPECT_EQ(text(*names, 4, 1), "2*I");
}

TEST_F(AxisNames, AxisWithoutANameIsAnErrorThatNamesIt) {
  set(0, "x", {5, 7168}, nullptr);
  set(4, "y", {5, 4096}, nullptr);

  const auto names = run();

  ASSERT_FALSE(names.ok());
  EXPECT_EQ(names.status().code(), StatusCode::kInternal);
  EXPECT_THAT(names.status().message(),
              HasSubstr("gate_up_proj: product: x, axis 0 of 2 (size 5) has no name"));
}

TEST_F(AxisNames, NameThatHasAnotherSizeIsAnErrorWithBothNumbers) {
  set(1, "w", {4096, 7168}, "I,H");

  const auto names = run();

  ASSERT_FALSE(names.ok());
  EXPECT_THAT(names.status().message(), HasSubstr("(size 4096) is named I, which is 2048"));
}

TEST_F(AxisNames, SymbolOfAStepHasOneSizeInACall) {
  set(4, "y", {6, 4096}, "T,2*I");

  const auto names = run();

  ASSERT_FALSE(names.ok());
  EXPECT_THAT(names.status().message(), HasSubstr("(size 6) is named T, which is 5"));
}

TEST_F(AxisNames, UnknownSymbolIsAnError) {
  set(0, "x", {5, 7168}, "Zz,H");

  const auto names = run();

  ASSERT_FALSE(names.ok());
  EXPECT_THAT(names.status().message(), HasSubstr("symbol Zz is neither"));
}

TEST_F(AxisNames, ExpressionOfTheStepIsSolvedForItsSymbol) {
  model_.set("K", 8);
  set(0, "x", {40, 7168}, "T*K,H");
  set(4, "y", {40, 4096}, "T*K,2*I");

  const auto names = run();

  ASSERT_TRUE(names.ok()) << names.status().message();
  EXPECT_EQ(names->step.at("T"), 5);
  EXPECT_EQ(names->operands[0][0].number, "T*8");
}

TEST_F(AxisNames, ExpressionThatNoWholeNumberSolvesIsAnError) {
  model_.set("K", 8);
  set(0, "x", {41, 7168}, "T*K,H");
  set(4, "y", {41, 4096}, "T*K,2*I");

  EXPECT_FALSE(run().ok());
}

TEST_F(AxisNames, LimitsAndExpressionsNameWhatTheyTie) {
  set(2, "w_scales", {4096}, nullptr);
  set(3, "g", {56, 4096}, nullptr);
  set(5, "z", {5, 8192}, nullptr);

  const auto names = run();

  ASSERT_TRUE(names.ok()) << names.status().message();
  EXPECT_EQ(text(*names, 2, 0), "2*I");
  EXPECT_EQ(text(*names, 3, 0), "H/128");
  EXPECT_EQ(names->operands[3][0].number, "56");
  EXPECT_EQ(text(*names, 5, 1), "2*(2*I)");
}

TEST_F(AxisNames, EmptyAndAbsentOperandsNeedNoNames) {
  set(2, "w_scales", {0}, nullptr);

  const auto names = run();

  ASSERT_TRUE(names.ok());
  EXPECT_TRUE(names->operands[2].empty());
  EXPECT_TRUE(names->operands[3].empty());
}

TEST(WithNumbers, ReplacesSymbolsOfTheModelAlone) {
  SymbolTable model;
  model.set("Nh", 128);
  model.set("Dn", 64);
  model.set("Dv", 32);

  EXPECT_EQ(with_numbers("Nh*(Dn+Dv)", model), "128*(64+32)");
  EXPECT_EQ(with_numbers("T*K2+1", model), "T*K2+1");
}

}  // namespace
}  // namespace fathom
