#include "fathom/weights/plan/weight_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SymbolTable symbols() {
  SymbolTable s;
  s.set("Nh", 128);
  s.set("Dn", 128);
  s.set("Dv", 64);
  s.set("H", 7168);
  return s;
}

TEST(AxisExpression, EvaluatesSumsProductsAndParentheses) {
  EXPECT_EQ(eval_axis("Nh*(Dn+Dv)", symbols()).value(), 128 * 192);
  EXPECT_EQ(eval_axis("Nh*Dn+Dv", symbols()).value(), 128 * 128 + 64);
  EXPECT_EQ(eval_axis("2*H", symbols()).value(), 14336);
  EXPECT_EQ(eval_axis("((7))", symbols()).value(), 7);
}

TEST(AxisExpression, SplitsAtCommas) {
  EXPECT_THAT(eval_axes("Nh*(Dn+Dv),H", symbols()).value(), ElementsAre(128 * 192, 7168));
  EXPECT_THAT(eval_axes("H", symbols()).value(), ElementsAre(7168));
}

TEST(AxisExpression, RefusesWhatItCannotRead) {
  for (const char* text :
       {"", "Nh*", "*Nh", "Nh Dn", "(Nh", "Nh)", "Nh-Dn", "1x", "Nh,,H", "Nh,"}) {
    EXPECT_FALSE(eval_axes(text, symbols()).ok()) << text;
  }
}

TEST(AxisExpression, NamesTheUnknownSymbol) {
  const auto result = eval_axis("Nh*Lq", symbols());
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("unknown symbol Lq at character 5"));
}

TEST(AxisExpression, RefusesOverflowAndDeepNesting) {
  EXPECT_FALSE(eval_axis("9999999999999999999", symbols()).ok());
  EXPECT_FALSE(eval_axis("4000000000*4000000000", symbols()).ok());
  EXPECT_FALSE(eval_axis("9223372036854775807+1", symbols()).ok());
  EXPECT_FALSE(eval_axis(std::string(40, '(') + "1" + std::string(40, ')'), symbols()).ok());
}

TEST(SymbolTable, SettingAgainReplaces) {
  SymbolTable s = symbols();
  s.set("H", 5);
  EXPECT_EQ(s.find("H"), 5);
  EXPECT_EQ(s.entries().size(), 4u);
  EXPECT_FALSE(s.find("E").has_value());
}

TEST(WeightRoles, HaveDistinctNames) {
  for (int i = 0; i < kNumWeightRoles; ++i) {
    for (int j = 0; j < i; ++j) {
      EXPECT_NE(weight_role_name(static_cast<WeightRole>(i)),
                weight_role_name(static_cast<WeightRole>(j)));
    }
  }
}

}  // namespace
}  // namespace fathom
