#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write.h"

#include <cmath>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

/// Position 0 turns nothing, position 1 a quarter.
TestTensor quarter_turns() {
  return TestTensor({2, 2}, Format::kF32, {1, 0, 0, 1});
}

TEST(QnormRopeKvWrite, NormsOverAllChannelsAndThenTurnsTheLast) {
  TestExec exec;
  const TestTensor table = quarter_turns();
  for (const std::string& variant : variants_of<QnormRopeKvWrite>()) {
    const TestTensor q({2, 1, 4}, Format::kF32, {3, 0, 4, 0, 1, 1, 1, -1});
    const TestTensor kv({2, 4}, Format::kF32, {1, 2, 3, 4, 5, 6, 7, 8});
    const TestTensor positions({2}, Format::kI32, {0, 1});
    const TestTensor slots({2}, Format::kI64, {2, 0});
    const TestTensor cache({3, 1, 4}, Format::kF32, -1.0f);

    FATHOM_EXPECT_OK(launch<QnormRopeKvWrite>(exec.with("qnorm_rope_kv_write", variant), "test",
                                              {.q = q.view(),
                                               .kv = kv.view(),
                                               .positions = positions.view(),
                                               .table = table.view(),
                                               .slots = slots.view(),
                                               .q_out = q.view(),
                                               .values = cache.view(),
                                               .eps = 0.0f}));

    EXPECT_EQ(q.values(), (std::vector<float>{1.2f, 0, 1.6f, 0, 1, 1, 1, 1})) << variant;
    EXPECT_EQ(cache.values(), (std::vector<float>{5, 6, -8, 7, -1, -1, -1, -1, 1, 2, 3, 4}))
        << variant;
  }
}

TEST(QnormRopeKvWrite, FoldsTheNormOfKvInWhenItHasAWeight) {
  TestExec exec;
  const TestTensor table = quarter_turns();
  for (const std::string& variant : variants_of<QnormRopeKvWrite>()) {
    const TestTensor q({1, 0, 4}, Format::kF32);
    const TestTensor kv({1, 4}, Format::kF32, {2, -2, 2, 2});
    const TestTensor weight({4}, Format::kF32, {1, 2, 3, 5});
    const TestTensor positions({1}, Format::kI32, {1.0f});
    const TestTensor slots({1}, Format::kI64, 0.0f);
    const TestTensor cache({1, 1, 4}, Format::kF32);

    FATHOM_EXPECT_OK(launch<QnormRopeKvWrite>(exec.with("qnorm_rope_kv_write", variant), "test",
                                              {.q = q.view(),
                                               .kv = kv.view(),
                                               .kv_norm = weight.view(),
                                               .positions = positions.view(),
                                               .table = table.view(),
                                               .slots = slots.view(),
                                               .q_out = q.view(),
                                               .values = cache.view(),
                                               .eps = 0.0f}));

    EXPECT_EQ(cache.values(), (std::vector<float>{1, -2, -5, 3})) << variant;
  }
}

TEST(QnormRopeKvWrite, KeepsFloat32WhereAllIsFloat32) {
  TestExec exec;
  const float fine = 1.0f + 0x1p-22f;
  const TestTensor table = quarter_turns();
  for (const std::string& variant : variants_of<QnormRopeKvWrite>()) {
    const TestTensor q({1, 0, 34}, Format::kF32);
    const TestTensor kv({1, 34}, Format::kF32, fine);
    const TestTensor positions({1}, Format::kI32, 0.0f);
    const TestTensor slots({1}, Format::kI64, 0.0f);
    const TestTensor cache({1, 1, 34}, Format::kF32);

    FATHOM_EXPECT_OK(launch<QnormRopeKvWrite>(exec.with("qnorm_rope_kv_write", variant), "test",
                                              {.q = q.view(),
                                               .kv = kv.view(),
                                               .positions = positions.view(),
                                               .table = table.view(),
                                               .slots = slots.view(),
                                               .q_out = q.view(),
                                               .values = cache.view()}));

    EXPECT_EQ(cache.values(), std::vector<float>(34, fine)) << variant;
  }
}

/// Operands of a call with fp8 rows, and its results.
struct Call {
  TestTensor q, kv, weight, positions, table, slots, q_out, values, rope, scales;

  Call(Rng& rng, int64_t t, int64_t h, Format format)
      : q({t, h, 512}, format),
        kv({t, 512}, format),
        weight({512}, Format::kBf16),
        positions({t}, Format::kI32),
        table({100, 64}, Format::kF32),
        slots({t}, Format::kI64),
        q_out({t, h, 512}, format),
        values({t, 2, 448}, Format::kE4m3),
        rope({t, 2, 64}, Format::kBf16),
        scales({t, 2, 7}, Format::kU8) {
    q.randomise(rng, 3.0f);
    kv.randomise(rng, 2.0f);
    weight.randomise(rng);
    table.randomise(rng);
    for (int64_t i = 0; i < t; ++i) {
      positions.set(i, static_cast<float>(17 * i % 100));
      slots.set(i, i == 1 ? -1.0f : static_cast<float>(2 * t - 1 - 2 * i));
    }
  }

  /// The scales are bytes.
  View ue8m0_scales() const {
    View v = scales.view();
    v.format = Format::kUe8m0;
    return v;
  }

  QnormRopeKvWrite::Args args() const {
    return {.q = q.view(),
            .kv = kv.view(),
            .kv_norm = weight.view(),
            .positions = positions.view(),
            .table = table.view(),
            .slots = slots.view(),
            .q_out = q_out.view(),
            .values = values.view(),
            .rope = rope.view(),
            .scales = ue8m0_scales()};
  }
};

TEST(QnormRopeKvWrite, EveryVariantHasTheBitsOfThePortableOne) {
  TestExec exec;
  for (const Format format : {Format::kBf16, Format::kF32}) {
    std::vector<std::vector<std::byte>> expected;
    for (const std::string& variant : {std::string("portable"), std::string("avx512")}) {
      if (variant == "avx512" && best_isa() < Isa::kAvx512) continue;
      Rng rng(3);
      const Call call(rng, 9, 5, format);

      FATHOM_EXPECT_OK(
          launch<QnormRopeKvWrite>(exec.with("qnorm_rope_kv_write", variant), "test", call.args()));

      const std::vector<std::vector<std::byte>> found = {call.q_out.bytes(), call.values.bytes(),
                                                         call.rope.bytes(), call.scales.bytes()};
      if (expected.empty()) expected = found;
      EXPECT_EQ(found, expected) << variant << " " << format_name(format);
    }
  }
}

TEST(QnormRopeKvWrite, NanStaysInItsHead) {
  TestExec exec;
  const TestTensor table = quarter_turns();
  for (const std::string& variant : variants_of<QnormRopeKvWrite>()) {
    TestTensor q({1, 3, 20}, Format::kBf16, 1.0f);
    q.set(27, NAN);
    const TestTensor kv({1, 20}, Format::kBf16, 1.0f);
    const TestTensor positions({1}, Format::kI32, 0.0f);
    const TestTensor slots({1}, Format::kI64, -1.0f);
    const TestTensor cache({1, 1, 20}, Format::kBf16);

    FATHOM_EXPECT_OK(launch<QnormRopeKvWrite>(exec.with("qnorm_rope_kv_write", variant), "test",
                                              {.q = q.view(),
                                               .kv = kv.view(),
                                               .positions = positions.view(),
                                               .table = table.view(),
                                               .slots = slots.view(),
                                               .q_out = q.view(),
                                               .values = cache.view()}));

    for (int64_t i = 0; i < 60; ++i)
      EXPECT_EQ(std::isnan(q[i]), i >= 20 && i < 40) << variant << " " << i;
  }
}

TEST(QnormRopeKvWrite, RefusesSlotsPositionsAndFieldsThatDoNotFit) {
  TestExec exec;
  Rng rng(1);
  const auto why = [&](const Call& call, const QnormRopeKvWrite::Args& args) {
    const Status status = launch<QnormRopeKvWrite>(*exec, "test", args);
    EXPECT_EQ(call.values[0], 0.0f) << "something was written";
    return status.message();
  };
  Call call(rng, 2, 1, Format::kBf16);
  QnormRopeKvWrite::Args args = call.args();

  call.slots.set(1, 4.0f);
  EXPECT_NE(why(call, args).find("slots[1] is 4 but there are slots 0..3"), std::string::npos);
  call.slots.set(1, -1.0f);
  call.positions.set(0, 100.0f);
  EXPECT_NE(why(call, args).find("positions[0] is 100"), std::string::npos);
  call.positions.set(0, 0.0f);
  args.scales = {};
  EXPECT_NE(why(call, args).find("scales is left out"), std::string::npos);
  args.scales = call.ue8m0_scales();
  args.eps = -1.0f;
  EXPECT_NE(why(call, args).find("eps is -1"), std::string::npos);
}

}  // namespace
}  // namespace fathom
