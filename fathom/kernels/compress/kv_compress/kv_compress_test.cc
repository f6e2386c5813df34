#include "fathom/kernels/compress/kv_compress/kv_compress.h"

#include <algorithm>
#include <cmath>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

/// A compressor of one sequence, fed in chunks: pools what a chunk finishes, then keeps the state,
/// as a model does.
struct Sequence {
  int64_t d, ratio, ring;
  bool overlap;
  TestTensor ape, norm, table, state_u, state_z, cache;

  Sequence(int64_t channels, int64_t r, bool overlaps, int64_t ring_rows, int64_t rotary = 0)
      : d(channels),
        ratio(r),
        ring(ring_rows),
        overlap(overlaps),
        ape({ratio, width()}, Format::kF32),
        norm({d}, Format::kF32, 1.0f),
        table({1024, rotary}, Format::kF32),
        state_u({2, ring, width()}, Format::kF32, NAN),
        state_z({2, ring, width()}, Format::kF32, NAN),
        cache({64, 1, d}, Format::kF32, -1.0f) {}

  int64_t width() const { return overlap ? 2 * d : d; }

  int64_t entries() const { return overlap ? 2 * ratio : ratio; }

  /// Tokens [begin, end) of all[tokens, 2 * width].
  void feed(Exec& ex, const TestTensor& all, int64_t begin, int64_t end) {
    const View u_z = slice_rows(all.view(), begin, end - begin);
    std::vector<float> gather;
    std::vector<float> positions;
    std::vector<float> slots;
    for (int64_t t = begin; t < end; ++t) {
      if ((t + 1) % ratio != 0) continue;
      for (int64_t p = t + 1 - entries(); p <= t; ++p)
        gather.push_back(static_cast<float>(place_of(p, begin, end)));
      positions.push_back(static_cast<float>(t + 1 - ratio));
      slots.push_back(static_cast<float>(t / ratio));
    }
    const auto rows = static_cast<int64_t>(slots.size());
    const TestTensor gather_at({rows, entries()}, Format::kI64, gather);
    const TestTensor positions_at({rows}, Format::kI32, positions);
    const TestTensor slots_at({rows}, Format::kI64, slots);
    FATHOM_EXPECT_OK(launch<CompressPool>(ex, "pool",
                                          {.u_z = u_z,
                                           .state_u = state_u.view(),
                                           .state_z = state_z.view(),
                                           .ape = ape.view(),
                                           .gather = gather_at.view(),
                                           .positions = positions_at.view(),
                                           .norm = norm.view(),
                                           .table = table.view(),
                                           .slots = slots_at.view(),
                                           .values = cache.view(),
                                           .eps = 0.0f,
                                           .activations = Format::kF32}));
    keep(ex, u_z, begin, end);
  }

  void keep(Exec& ex, const View& u_z, int64_t begin, int64_t end) {
    TestTensor positions({end - begin}, Format::kI32);
    TestTensor slots({end - begin}, Format::kI64);
    for (int64_t t = begin; t < end; ++t) {
      positions.set(t - begin, static_cast<float>(t));
      slots.set(t - begin, t < end - ring ? -1.0f : static_cast<float>(ring + t % ring));
    }
    FATHOM_EXPECT_OK(launch<CompressStateWrite>(ex, "keep",
                                                {.u_z = u_z,
                                                 .ape = ape.view(),
                                                 .positions = positions.view(),
                                                 .slots = slots.view(),
                                                 .state_u = state_u.view(),
                                                 .state_z = state_z.view()}));
  }

  /// The sequence has the second slot.
  int64_t place_of(int64_t p, int64_t begin, int64_t end) const {
    if (p < 0) return -1;
    return p >= begin ? p - begin : end - begin + ring + p % ring;
  }
};

/// Channel 0: u^a_t = t, u^b_t = 10 + t; channel 1: ones, so that channel 0 over channel 1 is the
/// pooled value whatever the norm. z is given by ape.
std::vector<float> counting_tokens(int64_t count) {
  std::vector<float> all;
  for (int64_t t = 0; t < count; ++t) {
    const auto number = static_cast<float>(t);
    all.insert(all.end(), {number, 1, 10 + number, 1, 0, 0, 0, 0});
  }
  return all;
}

TEST(CompressPool, PoolsTheReferenceRowsOfRatio4) {
  const double expected[2][3] = {{11.5, 5, 9}, {11.252790, 5.476567, 9.476566}};
  TestExec exec;
  const TestTensor all({12, 8}, Format::kF32, counting_tokens(12));
  for (const std::string& variant : variants_of<CompressPool>()) {
    for (int scores = 0; scores < 2; ++scores) {
      Sequence s(2, 4, true, 8);
      for (int64_t j = 0; j < 4; ++j) {  // a-columns, then b-columns, two channels each
        const auto step = static_cast<float>(j);
        s.ape.set(4 * j, scores == 0 ? std::log(3.0f) : 0.5f + 0.1f * step);
        s.ape.set(4 * j + 2, scores == 0 ? 0.0f : -0.2f * step);
      }

      s.feed(exec.with("compress_pool", variant), all, 0, 12);

      for (int64_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(double{s.cache[2 * i] / s.cache[2 * i + 1]}, expected[scores][i], 4e-6)
            << variant << " row " << i;
      }
      EXPECT_EQ(s.cache[6], -1.0f) << "row 3 is not finished";
    }
  }
}

/// The compressed cache after tokens that came in chunks of that size.
std::vector<float> in_chunks(Exec& ex, const TestTensor& all, Sequence& s, int64_t chunk) {
  Rng rng(4);
  s.ape.randomise(rng);
  s.norm.randomise(rng);
  s.table.randomise(rng);
  const int64_t count = all.view().dim(0);
  for (int64_t t = 0; t < count; t += chunk)
    s.feed(ex, all, t, std::min(count, t + chunk));
  return s.cache.values();
}

TEST(CompressPool, ChunksOfAnySizeHaveTheBitsOfTheWholePrompt) {
  TestExec exec;
  Rng rng(8);
  for (const std::string& variant : variants_of<CompressPool>()) {
    Exec& ex = exec.with("compress_pool", variant);
    for (const Format format : {Format::kF32, Format::kBf16}) {
      TestTensor short_prompt({45, 4 * 20}, format);
      TestTensor long_prompt({300, 2 * 20}, format);
      short_prompt.randomise(rng);
      long_prompt.randomise(rng);
      Sequence whole4(20, 4, true, 8, 6);
      Sequence whole128(20, 128, false, 128, 6);
      const std::vector<float> csa = in_chunks(ex, short_prompt, whole4, 45);
      const std::vector<float> hca = in_chunks(ex, long_prompt, whole128, 300);
      EXPECT_NE(csa[20 * 10], -1.0f);
      EXPECT_NE(hca[20 * 1], -1.0f);
      for (int64_t extra : {0, 3}) {
        for (int64_t chunk : {1, 2, 3, 4, 5, 7, 8, 9, 16, 31}) {
          Sequence s(20, 4, true, 8 + extra, 6);
          EXPECT_EQ(in_chunks(ex, short_prompt, s, chunk), csa) << variant << " chunk " << chunk;
        }
        for (int64_t chunk : {1, 64, 100, 127, 128, 129, 131, 256}) {
          Sequence s(20, 128, false, 128 + extra, 6);
          EXPECT_EQ(in_chunks(ex, long_prompt, s, chunk), hca) << variant << " chunk " << chunk;
        }
      }
    }
  }
}

TEST(CompressPool, ARingWithRoomForDraftsSurvivesTheirRejection) {
  TestExec exec;
  Rng rng(6);
  TestTensor all({32, 4 * 20}, Format::kF32);
  TestTensor drafts({32, 4 * 20}, Format::kF32);
  all.randomise(rng);
  drafts.randomise(rng);
  for (const std::string& variant : variants_of<CompressPool>()) {
    Exec& ex = exec.with("compress_pool", variant);
    Sequence plain(20, 4, true, 8);
    Sequence s(20, 4, true, 8 + 3);
    const std::vector<float> expected = in_chunks(ex, all, plain, 1);
    in_chunks(ex, TestTensor({0, 4 * 20}, Format::kF32), s, 1);  // the same constants

    // Every step verifies one token and three drafts, of which none is taken.
    for (int64_t t = 0; t + 4 <= 32; ++t) {
      TestTensor step({32, 4 * 20}, Format::kF32, drafts.values());
      for (int64_t i = 0; i < 80; ++i)
        step.set(t * 80 + i, all[t * 80 + i]);
      s.feed(ex, step, t, t + 4);
    }

    const std::vector<float> found = s.cache.values();
    EXPECT_TRUE(std::equal(found.begin(), found.begin() + 7 * 20, expected.begin())) << variant;
  }
}

TEST(CompressPool, RotatesByTheFirstTokenOfTheBlock) {
  TestExec exec;
  for (const std::string& variant : variants_of<CompressPool>()) {
    Sequence s(2, 4, false, 4, 2);
    for (int64_t p = 0; p < 1024; ++p)
      s.table.set(2 * p + (p == 4 ? 1 : 0), 1.0f);  // a quarter turn at position 4 alone
    const TestTensor all({8, 4}, Format::kF32, 1.0f);

    s.feed(exec.with("compress_pool", variant), all, 0, 8);

    EXPECT_EQ(s.cache[0], 1.0f) << variant;
    EXPECT_EQ(s.cache[1], 1.0f) << variant;
    EXPECT_EQ(s.cache[2], -1.0f) << variant;
    EXPECT_EQ(s.cache[3], 1.0f) << variant;
  }
}

/// Operands of one row of ratio 2 without overlap, and its result.
struct OneRow {
  TestTensor u_z, state, ape, gather, positions, norm, table, slots, cache;

  explicit OneRow(int64_t d)
      : u_z({2, 2 * d}, Format::kF32),
        state({1, 1, d}, Format::kF32, NAN),
        ape({2, d}, Format::kF32),
        gather({1, 2}, Format::kI64, {0, 1}),
        positions({1}, Format::kI32),
        norm({d}, Format::kF32, 1.0f),
        table({1, 0}, Format::kF32),
        slots({1}, Format::kI64, 0.0f),
        cache({1, 1, d}, Format::kF32, -1.0f) {}

  CompressPool::Args args() const {
    return {.u_z = u_z.view(),
            .state_u = state.view(),
            .state_z = state.view(),
            .ape = ape.view(),
            .gather = gather.view(),
            .positions = positions.view(),
            .norm = norm.view(),
            .table = table.view(),
            .slots = slots.view(),
            .values = cache.view(),
            .eps = 0.0f,
            .activations = Format::kF32};
  }
};

TEST(CompressPool, MinusInfinityCountsNothingAndNanSpoilsItsRow) {
  TestExec exec;
  for (const std::string& variant : variants_of<CompressPool>()) {
    OneRow row(2);
    const float values[8] = {3, 5, -INFINITY, 0, 1, 7, 0, 0};  // u u z z of two tokens
    for (int64_t i = 0; i < 8; ++i)
      row.u_z.set(i, values[i]);

    FATHOM_EXPECT_OK(launch<CompressPool>(exec.with("compress_pool", variant), "test", row.args()));
    EXPECT_NEAR(row.cache[0] / row.cache[1], 1.0f / 6.0f, 1e-6f) << variant;

    row.u_z.set(2, NAN);
    FATHOM_EXPECT_OK(launch<CompressPool>(exec.with("compress_pool", variant), "test", row.args()));
    EXPECT_TRUE(std::isnan(row.cache[0]) && std::isnan(row.cache[1])) << variant;
  }
}

TEST(CompressPool, RoundsThePooledRowToBf16WhereActivationsAre) {
  TestExec exec;
  for (const std::string& variant : variants_of<CompressPool>()) {
    OneRow row(2);
    for (int64_t t = 0; t < 2; ++t) {
      row.u_z.set(4 * t, 1.0f + 0x1p-10f);
      row.u_z.set(4 * t + 1, 2.0f);
    }
    CompressPool::Args args = row.args();

    FATHOM_EXPECT_OK(launch<CompressPool>(exec.with("compress_pool", variant), "test", args));
    EXPECT_NEAR(row.cache[1] / row.cache[0], 2.0f / (1.0f + 0x1p-10f), 2e-7f) << variant;

    args.activations = Format::kBf16;
    FATHOM_EXPECT_OK(launch<CompressPool>(exec.with("compress_pool", variant), "test", args));
    EXPECT_EQ(row.cache[1] / row.cache[0], 2.0f) << variant;
  }
}

TEST(CompressPool, AnIndexKeyIsTransformedAndQuantised) {
  TestExec exec;
  for (const std::string& variant : variants_of<CompressPool>()) {
    OneRow row(128);
    row.u_z.set(1, 2.0f);
    row.u_z.set(256 + 1, 2.0f);
    row.norm.set(1, 8.0f / std::sqrt(128.0f));  // of the only channel that is not 0: 8
    const TestTensor codes({1, 1, 64}, Format::kU8);
    const TestTensor scales({1, 1, 4}, Format::kU8);
    CompressPool::Args args = row.args();
    args.values = codes.view();
    args.scales = scales.view();
    args.scales.format = Format::kUe8m0;
    args.activations = Format::kBf16;
    args.transform = CompressTransform::kHadamard;

    FATHOM_EXPECT_OK(launch<CompressPool>(exec.with("compress_pool", variant), "test", args));

    // +-.7071 with alternating signs, and so +-6 times 2^-3.
    EXPECT_EQ(codes.bytes(), std::vector<std::byte>(64, std::byte{0xF7})) << variant;
    EXPECT_EQ(scales.bytes(), std::vector<std::byte>(4, std::byte{124})) << variant;
  }
}

TEST(CompressPool, SkipsARowWithoutASlotWhateverItSays) {
  TestExec exec;
  OneRow row(3);
  row.slots.set(0, -1.0f);
  row.gather.set(0, 99.0f);
  row.positions.set(0, 99.0f);
  for (const std::string& variant : variants_of<CompressPool>()) {
    FATHOM_EXPECT_OK(launch<CompressPool>(exec.with("compress_pool", variant), "test", row.args()));

    EXPECT_EQ(row.cache.values(), std::vector<float>(3, -1.0f)) << variant;
  }
}

TEST(CompressPool, NamesWhatDoesNotFit) {
  TestExec exec;
  OneRow row(3);
  const auto why = [&](const CompressPool::Args& args) {
    const Status status = launch<CompressPool>(*exec, "test", args);
    EXPECT_EQ(row.cache.values(), std::vector<float>(3, -1.0f));
    return status.message();
  };
  CompressPool::Args args = row.args();

  row.gather.set(1, -1.0f);
  EXPECT_NE(why(args).find("gather[0,1] is -1, expected 0 to 2"), std::string::npos) << why(args);
  row.gather.set(1, 3.0f);
  EXPECT_NE(why(args).find("gather[0,1] is 3, expected 0 to 2"), std::string::npos) << why(args);
  row.gather.set(1, 1.0f);
  row.positions.set(0, 1.0f);
  EXPECT_NE(why(args).find("positions[0] is 1 but the table has rows 0..0"), std::string::npos);
  row.positions.set(0, 0.0f);
  args.transform = CompressTransform::kHadamard;
  EXPECT_NE(why(args).find("a transform of 3 channels"), std::string::npos) << why(args);
  args.transform = CompressTransform::kNone;
  args.activations = Format::kF16;
  EXPECT_NE(why(args).find("activations is f16"), std::string::npos) << why(args);
}

TEST(CompressStateWrite, AddsApeOfThePositionToScoresAlone) {
  TestExec exec;
  const TestTensor u_z({3, 2}, Format::kBf16, {1, 10, 2, 20, 3, 30});
  const TestTensor ape({2, 1}, Format::kF32, {0.25f, 0.5f});
  const TestTensor positions({3}, Format::kI32, {5, 6, 7});
  const TestTensor slots({3}, Format::kI64, {3, -1, 0});
  const TestTensor u({2, 2, 1}, Format::kF32, -1.0f);
  const TestTensor z({2, 2, 1}, Format::kF32, -1.0f);

  FATHOM_EXPECT_OK(launch<CompressStateWrite>(*exec, "test",
                                              {.u_z = u_z.view(),
                                               .ape = ape.view(),
                                               .positions = positions.view(),
                                               .slots = slots.view(),
                                               .state_u = u.view(),
                                               .state_z = z.view()}));

  EXPECT_EQ(u.values(), (std::vector<float>{3, -1, -1, 1}));
  EXPECT_EQ(z.values(), (std::vector<float>{30.5f, -1, -1, 10.5f}));
}

TEST(CompressStateWrite, RefusesNegativePositionsAndSlotsThatDoNotExist) {
  TestExec exec;
  const TestTensor u_z({1, 2}, Format::kF32);
  const TestTensor ape({2, 1}, Format::kF32);
  const TestTensor state({2, 2, 1}, Format::kF32);
  const auto why = [&](float position, float slot) {
    const TestTensor positions({1}, Format::kI32, {position});
    const TestTensor slots({1}, Format::kI64, {slot});
    return launch<CompressStateWrite>(*exec, "test",
                                      {.u_z = u_z.view(),
                                       .ape = ape.view(),
                                       .positions = positions.view(),
                                       .slots = slots.view(),
                                       .state_u = state.view(),
                                       .state_z = state.view()})
        .message();
  };

  EXPECT_NE(why(-1, 0).find("positions[0] is -1, expected 0 or more"), std::string::npos);
  EXPECT_NE(why(0, 4).find("slots[0] is 4 but there are slots 0..3"), std::string::npos);
}

}  // namespace
}  // namespace fathom
