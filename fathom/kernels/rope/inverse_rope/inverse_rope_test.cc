#include "fathom/kernels/rope/inverse_rope/inverse_rope.h"

#include <cmath>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

TEST(InverseRope, TurnsTheLastChannelsByTheAngleOfTheOtherSign) {
  TestExec exec;
  // A quarter turn forward takes (3, 4) to (-4, 3), so back to (4, -3).
  const TestTensor table({2, 2}, Format::kF32, {1, 0, 0, 1});
  const TestTensor positions({2}, Format::kI32, {1, 0});
  for (const std::string& variant : variants_of<InverseRope>()) {
    const TestTensor o({2, 2, 4}, Format::kBf16, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8});

    FATHOM_EXPECT_OK(
        launch<InverseRope>(exec.with("inverse_rope", variant), "test",
                            {.o = o.view(), .positions = positions.view(), .table = table.view()}));

    EXPECT_EQ(o.values(), (std::vector<float>{1, 2, 4, -3, 5, 6, 8, -7, 1, 2, 3, 4, 5, 6, 7, 8}))
        << variant;
  }
}

TEST(InverseRope, RefusesAPositionOutsideTheTable) {
  TestExec exec;
  const TestTensor table({2, 2}, Format::kF32, 1.0f);
  const TestTensor positions({1}, Format::kI32, {2.0f});
  const TestTensor o({1, 1, 2}, Format::kF32, 5.0f);

  const Status status = launch<InverseRope>(
      *exec, "test", {.o = o.view(), .positions = positions.view(), .table = table.view()});

  EXPECT_NE(status.message().find("positions[0] is 2"), std::string::npos) << status.message();
  EXPECT_EQ(o.values(), (std::vector<float>{5, 5}));
}

/// A quantised call and its results; no channel turns at position 0.
struct Quantised {
  TestTensor o, positions, table, y, s;
  Format scales;  ///< of s, whose bytes stand for ue8m0

  Quantised(int64_t heads, int64_t groups, Format scale_format)
      : o({1, heads, 256}, Format::kF32),
        positions({1}, Format::kI32),
        table({1, 4}, Format::kF32, {1, 1, 0, 0}),
        y({1, groups, heads / groups * 256}, Format::kE4m3),
        s({1, groups, heads / groups * 2},
          scale_format == Format::kF32 ? Format::kF32 : Format::kU8),
        scales(scale_format) {}

  InverseRopeQuant::Args args() const {
    View s_view = s.view();
    s_view.format = scales;
    return {.o = o.view(),
            .positions = positions.view(),
            .table = table.view(),
            .y = y.view(),
            .s = s_view};
  }
};

TEST(InverseRopeQuant, HasTheScalesWorkedOutByHand) {
  TestExec exec;
  for (const std::string& variant : variants_of<InverseRopeQuant>()) {
    Quantised call(2, 2, Format::kUe8m0);
    call.o.set(0, 448.0f);         // scale 1
    call.o.set(128, 1.0f);         // 2^-8
    call.o.set(256 + 255, -7.0f);  // 2^-6; the other group is zeros: 2^-22

    FATHOM_EXPECT_OK(
        launch<InverseRopeQuant>(exec.with("inverse_rope_quant", variant), "test", call.args()));

    EXPECT_EQ(call.s.bytes(), (std::vector<std::byte>{std::byte{127}, std::byte{119},
                                                      std::byte{105}, std::byte{121}}))
        << variant;
    EXPECT_EQ(call.y[0], 448.0f) << variant;
    EXPECT_EQ(call.y[128], 256.0f) << variant;
    EXPECT_EQ(call.y[256 + 255], -448.0f) << variant;
    EXPECT_EQ(call.y[1], 0.0f) << variant;
  }
}

TEST(InverseRopeQuant, EveryVariantHasTheBitsOfThePortableOne) {
  TestExec exec;
  for (const Format scales : {Format::kUe8m0, Format::kF32}) {
    std::vector<std::byte> expected;
    std::vector<std::byte> expected_scales;
    for (const std::string& variant : {std::string("portable"), std::string("avx512")}) {
      if (variant == "avx512" && best_isa() < Isa::kAvx512) continue;
      Quantised call(6, 3, scales);
      Rng rng(9);
      call.o.randomise(rng, 5.0f);
      call.o.set(300, NAN);
      call.o.set(700, INFINITY);
      call.table.randomise(rng);

      FATHOM_EXPECT_OK(
          launch<InverseRopeQuant>(exec.with("inverse_rope_quant", variant), "test", call.args()));

      if (expected.empty()) {
        expected = call.y.bytes();
        expected_scales = call.s.bytes();
      }
      EXPECT_EQ(call.y.bytes(), expected) << variant;
      EXPECT_EQ(call.s.bytes(), expected_scales) << variant;
    }
  }
}

}  // namespace
}  // namespace fathom
