#include "fathom/runtime/eval/compare_taps.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

void show(const Probe& probe, std::string_view name, int layer, std::vector<float> values) {
  tap(&probe, name, layer,
      make_view(values.data(), {1, static_cast<int64_t>(values.size())}, Format::kF32, "T,H"));
}

TEST(TapComparison, GivesTheCosineOverAllPassesAndSequences) {
  TapComparison taps;
  const Probe expected = taps.reference_probe();
  const Probe found = taps.other_probe();
  // The reference runs in one pass, the other in two.
  show(expected, "attn.output", 3, {1, 2, 3, 4});
  show(found, "attn.output", 3, {1, 2});
  show(found, "attn.output", 3, {3, 5});
  taps.next_sequence();
  show(expected, "attn.output", 3, {2});
  show(found, "attn.output", 3, {2});

  const TapCosine& sum = taps.results().at({3, "attn.output"});

  EXPECT_EQ(sum.dot, 1 + 4 + 9 + 20 + 4);
  EXPECT_DOUBLE_EQ(sum.cosine(), 38 / std::sqrt(34.0 * 43.0));
}

TEST(TapComparison, LeavesOutWhatOneOfTheTwoLacks) {
  TapComparison taps;
  show(taps.reference_probe(), "ffn.output", 0, {1});
  show(taps.reference_probe(), "router.weights", 0, {1});
  show(taps.other_probe(), "ffn.output", 1, {1});
  show(taps.other_probe(), "router.weights", 0, {1});
  EXPECT_TRUE(taps.results().empty());
}

TEST(TapComparison, ReadsBf16) {
  TapComparison taps;
  std::vector<Bf16> values{bf16_from_float(1.5f), bf16_from_float(-2.0f)};
  show(taps.reference_probe(), "layer.input", 0, {1.5f, -2.0f});
  const Probe found = taps.other_probe();
  tap(&found, "layer.input", 0, make_view(values.data(), {1, 2}, Format::kBf16, "T,H"));
  EXPECT_EQ(taps.results().at({0, "layer.input"}).cosine(), 1.0);
}

}  // namespace
}  // namespace fathom
