#include "fathom/weights/weight_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::HasSubstr;

TEST(WeightPlan, RefusesAStackOfNarrowMatricesEvenOfOne) {
  SymbolTable symbols;
  symbols.set("E", 1);
  symbols.set("H", 8);
  symbols.set("I", 16);
  WeightPlan plan(symbols, [](const WeightSpec&) -> Result<Format> { return Format::kBf16; });
  LinearWeight w;

  const Status status = plan.stack({{"e.{}.weight", "H,I"}}, 1, "E,H,I", WeightRole::kExpert, &w);

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("e.0.weight has 8 rows"));
}

}  // namespace
}  // namespace fathom
