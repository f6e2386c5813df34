// Outputs of sparse_mla_decode that are turned back.
#include <cmath>
#include <gtest/gtest.h>

#include "fathom/kernels/attn/sparse_mla/sparse_mla.h"
#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/rope/inverse_rope/inverse_rope.h"

namespace fathom {
namespace {

/// Three tokens of seven heads of 50 channels, of which 34 are turned; the second has no rows.
struct TurnedCall {
  TestTensor q, values, slots, sink, positions, table, o, lse;

  TurnedCall(Format rows, Format output)
      : q({3, 7, 50}, rows),
        values({4, 16, 50}, rows),
        slots({3, 70}, Format::kI32),
        sink({7}, Format::kF32, {0, 1, 2, 3, -1, -2, 100}),
        positions({3}, Format::kI32, {8, 3, 0}),
        table({9, 34}, Format::kF32),
        o({3, 7, 50}, output, NAN),
        lse({3, 7}, Format::kF32, NAN) {
    Rng rng(4);
    q.randomise(rng);
    values.randomise(rng);
    table.randomise(rng);
    for (int64_t i = 0; i < slots.size(); ++i)
      slots.set(i, i / 70 == 1 ? -1.0f : static_cast<float>(i * 7 % 64));
  }

  SparseMlaDecode::Args args() const {
    return {.q = q.view(),
            .rows = {.values = values.view(), .slots = slots.view()},
            .o = o.view(),
            .sink = sink.view(),
            .lse = lse.view(),
            .scale = 0.3f,
            .positions = positions.view(),
            .table = table.view()};
  }

  Status run(Exec& ex) const { return launch<SparseMlaDecode>(ex, "test", args()); }
};

Format rows_of(const std::string& variant) {
  return variant == "portable" ? Format::kF32 : Format::kBf16;
}

TEST(SparseMlaTurned, HasTheBitsOfTheRotationOfItsFloat32Output) {
  TestExec ex;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    Exec& exec = ex.with("sparse_mla_decode", variant);
    const TurnedCall turned(rows_of(variant), Format::kF32);
    const TurnedCall rounded(rows_of(variant), Format::kBf16);
    const TurnedCall apart(rows_of(variant), Format::kF32);
    SparseMlaDecode::Args plain = apart.args();
    plain.positions = plain.table = {};

    FATHOM_EXPECT_OK(turned.run(exec));
    FATHOM_EXPECT_OK(rounded.run(exec));
    FATHOM_EXPECT_OK(launch<SparseMlaDecode>(exec, "test", plain));
    FATHOM_EXPECT_OK(launch<InverseRope>(
        exec, "test",
        {.o = apart.o.view(), .positions = apart.positions.view(), .table = apart.table.view()}));

    EXPECT_EQ(turned.o.bytes(), apart.o.bytes()) << variant;
    EXPECT_EQ(turned.lse.bytes(), apart.lse.bytes()) << variant;
    for (int64_t i = 0; i < turned.o.size(); ++i)
      ASSERT_EQ(rounded.o[i], to_float(bf16_from_float(turned.o[i]))) << variant << " " << i;
  }
}

TEST(SparseMlaTurned, ATokenWithoutRowsIsZero) {
  TestExec ex;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    const TurnedCall call(rows_of(variant), Format::kBf16);

    FATHOM_EXPECT_OK(call.run(ex.with("sparse_mla_decode", variant)));

    for (int64_t i = 7 * 50; i < 2 * 7 * 50; ++i)
      ASSERT_EQ(call.o[i], 0.0f) << variant << " " << i;
  }
}

TEST(SparseMlaTurned, NamesWhatDoesNotFit) {
  using Args = SparseMlaDecode::Args;
  TestExec ex;
  const TurnedCall call(Format::kBf16, Format::kBf16);
  const auto expect = [&](const std::string& text, auto change) {
    Args args = call.args();
    change(args);
    const Status status = launch<SparseMlaDecode>(*ex, "test", args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  const TestTensor outside({3}, Format::kI32, {8, 9, 0}), below({3}, Format::kI32, {0, 0, -1});

  expect("positions[1] is 9", [&](Args& a) { a.positions = outside.view(); });
  expect("positions[2] is -1", [&](Args& a) { a.positions = below.view(); });
  expect("positions is given but table is not", [](Args& a) { a.table = {}; });
  expect("table is given but positions is not", [](Args& a) { a.positions = {}; });
  expect("table has 33 columns, expected an even number of at most 50",
         [](Args& a) { a.table.dims[1] = 33; });
  expect("table has 34 columns, expected an even number of at most 32",
         [](Args& a) { a.o.dims[2] = 32; });
}

TEST(SparseMlaTurned, CountsTheRotationAndARowOfTheTableForEachToken) {
  const TurnedCall call(Format::kBf16, Format::kBf16);
  SparseMlaDecode::Args plain = call.args();
  plain.positions = plain.table = {};

  const Cost turned = cost_of<SparseMlaDecode>(call.args());
  const Cost without = cost_of<SparseMlaDecode>(plain);

  EXPECT_EQ(turned.flops - without.flops, 3.0 * 3 * 7 * 34);
  EXPECT_EQ(turned.bytes_read - without.bytes_read, 3 * (4 + 34 * 4));
  EXPECT_EQ(turned.bytes_written, without.bytes_written);
}

}  // namespace
}  // namespace fathom
