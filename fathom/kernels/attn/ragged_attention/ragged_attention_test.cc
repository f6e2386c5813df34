#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/merge_state/merge_state.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Attention over requests with these numbers of queries and keys.
struct Output {
  TestTensor o;
  TestTensor lse;
};

std::vector<float> offsets_of(const std::vector<int64_t>& counts) {
  std::vector<float> offsets = {0};
  for (int64_t c : counts)
    offsets.push_back(offsets.back() + static_cast<float>(c));
  return offsets;
}

/// Runs one call; q, k, v are views so that parts of a batch can be run.
std::unique_ptr<Output> attend(Exec& ex,
                               const View& q,
                               const View& k,
                               const View& v,
                               const std::vector<int64_t>& queries,
                               const std::vector<int64_t>& keys,
                               CausalMask mask = CausalMask::kCausal,
                               float scale = 0.25f,
                               LseBase base = LseBase::kE) {
  auto out =
      std::unique_ptr<Output>(new Output{TestTensor({q.dim(0), q.dim(1), v.dim(2)}, q.format, NAN),
                                         TestTensor({q.dim(0), q.dim(1)}, Format::kF32, NAN)});
  const auto num_offsets = static_cast<int64_t>(queries.size()) + 1;
  const TestTensor q_offsets({num_offsets}, Format::kI32, offsets_of(queries));
  const TestTensor kv_offsets({num_offsets}, Format::kI32, offsets_of(keys));
  FATHOM_EXPECT_OK(launch<RaggedAttention>(ex, "test",
                                           {.q = q,
                                            .k = k,
                                            .v = v,
                                            .q_offsets = q_offsets.view(),
                                            .kv_offsets = kv_offsets.view(),
                                            .o = out->o.view(),
                                            .lse = out->lse.view(),
                                            .scale = scale,
                                            .mask = mask,
                                            .lse_base = base}));
  return out;
}

/// Bytes of rows [begin, begin + count) of a result of `total` rows.
std::vector<std::byte> rows_of(const TestTensor& t, int64_t begin, int64_t count) {
  const auto each = static_cast<int64_t>(t.bytes().size()) / t.view().dim(0);
  return {t.bytes().begin() + begin * each, t.bytes().begin() + (begin + count) * each};
}

struct Inputs {
  TestTensor q, k, v;

  Inputs(int64_t T, int64_t S, int64_t N, int64_t Dq, int64_t Dv, Format format, uint64_t seed)
      : q({T, N, Dq}, format), k({S, N, Dq}, format), v({S, N, Dv}, format) {
    Rng rng(seed, 1);
    q.randomise(rng);
    k.randomise(rng);
    v.randomise(rng);
  }
};

Format format_of(const std::string& variant) {
  return variant == "portable" ? Format::kF32 : Format::kBf16;
}

TEST(RaggedAttention, GivesTheWorkedExampleOfTheExpandedForm) {
  // Two heads over three latents; keys [W_UK c | k_r], values W_UV c.
  const double c[3][2] = {{1, -1}, {2, .5}, {0, 1}};
  const double k_r[3][2] = {{.5, 0}, {0, 1}, {1, 1}};
  const double uk[2][2][2] = {{{1, 2}, {0, -1}}, {{.5, 0}, {1, 1}}};
  const double uv[2][2][2] = {{{1, 0}, {1, 1}}, {{2, -1}, {0, 1}}};
  TestTensor k({3, 2, 4}, Format::kF32);
  TestTensor v({3, 2, 2}, Format::kF32);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 2; ++i) {
        const auto up = [&](const double(&w)[2]) { return w[0] * c[t][0] + w[1] * c[t][1]; };
        k.set((t * 2 + h) * 4 + i, static_cast<float>(up(uk[h][i])));
        k.set((t * 2 + h) * 4 + 2 + i, static_cast<float>(k_r[t][i]));
        v.set((t * 2 + h) * 2 + i, static_cast<float>(up(uv[h][i])));
      }
    }
  }
  const TestTensor q({1, 2, 4}, Format::kF32, {1, 1, 1, 0, .5f, -1, 0, 2});
  TestExec ex;

  const auto out = attend(*ex, q.view(), k.view(), v.view(), {1}, {3}, CausalMask::kCausal, 0.5f);

  expect_near(out->o.values(), {1.103042, 1.527382, 1.388394, .268537}, 2e-6);
  expect_near(out->lse.values(), {2.013923, 1.330218}, 2e-6);
}

TEST(RaggedAttention, ARowDoesNotDependOnHowItsRequestIsCutIntoCalls) {
  TestExec ex;
  for (const std::string& variant : variants_of<RaggedAttention>()) {
    constexpr int64_t kTokens = 211;
    const Inputs x(kTokens, kTokens, 3, 48, 32, format_of(variant), 1);
    Exec& exec = ex.with("ragged_attention", variant);
    const auto whole = attend(exec, x.q.view(), x.k.view(), x.v.view(), {kTokens}, {kTokens});

    for (const auto& cuts : {std::vector<int64_t>{0, 1, kTokens},
                             {0, 64, 128, kTokens},
                             {0, 37, 101, 150, 210, kTokens}}) {
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const int64_t count = cuts[i + 1] - cuts[i];
        const auto part = attend(exec, slice_rows(x.q.view(), cuts[i], count),
                                 slice_rows(x.k.view(), 0, cuts[i + 1]),
                                 slice_rows(x.v.view(), 0, cuts[i + 1]), {count}, {cuts[i + 1]});
        EXPECT_EQ(part->o.bytes(), rows_of(whole->o, cuts[i], count)) << variant << " " << cuts[i];
        EXPECT_EQ(part->lse.bytes(), rows_of(whole->lse, cuts[i], count)) << variant;
      }
    }
  }
}

TEST(RaggedAttention, ARowDoesNotDependOnOtherRequestsEvenIfTheyHoldNan) {
  TestExec ex;
  for (const std::string& variant : variants_of<RaggedAttention>()) {
    Inputs x(30 + 7 + 90, 30 + 77 + 90, 2, 48, 32, format_of(variant), 2);
    Exec& exec = ex.with("ragged_attention", variant);
    const auto alone = attend(exec, slice_rows(x.q.view(), 30, 7), slice_rows(x.k.view(), 30, 77),
                              slice_rows(x.v.view(), 30, 77), {7}, {77});
    for (TestTensor* t : {&x.k, &x.v}) {
      const int64_t each = t->size() / t->view().dim(0);
      for (int64_t i = 0; i < t->size(); ++i) {
        if (i / each < 30 || i / each >= 107) t->set(i, NAN);
      }
    }

    const auto together =
        attend(exec, x.q.view(), x.k.view(), x.v.view(), {30, 7, 90}, {30, 77, 90});

    EXPECT_EQ(rows_of(together->o, 30, 7), alone->o.bytes()) << variant;
    EXPECT_EQ(rows_of(together->lse, 30, 7), alone->lse.bytes()) << variant;
    EXPECT_TRUE(std::isnan(together->o[0]));
  }
}

TEST(RaggedAttention, ThreadsDoNotChangeBits) {
  for (const std::string& variant : variants_of<RaggedAttention>()) {
    const Inputs x(150, 400, 5, 64, 32, format_of(variant), 3);
    std::vector<std::vector<std::byte>> results;
    for (int threads : {1, 2, 3, 7}) {
      TestExec ex(threads);
      results.push_back(attend(ex.with("ragged_attention", variant), x.q.view(), x.k.view(),
                               x.v.view(), {150}, {400})
                            ->o.bytes());
      EXPECT_EQ(results.back(), results[0]) << variant << ", " << threads << " threads";
    }
  }
}

TEST(RaggedAttention, RowsWithoutKeysAreZeroWithLogSumExpOfMinusInfinity) {
  TestExec ex;
  for (const std::string& variant : variants_of<RaggedAttention>()) {
    const Inputs x(5, 2, 2, 16, 16, format_of(variant), 4);
    // Request 0 has no keys; the first query of request 1 stands before its two keys.
    const auto out = attend(ex.with("ragged_attention", variant), x.q.view(), x.k.view(),
                            x.v.view(), {2, 3}, {0, 2});

    for (int64_t t = 0; t < 5; ++t) {
      const bool sees_keys = t >= 3;
      EXPECT_EQ(out->lse[t * 2] != -kInf, sees_keys) << t;
      EXPECT_EQ(out->o[t * 32] != 0.0f, sees_keys) << t;
    }
  }
}

/// Attention over any contiguous chunks of the keys, merged, is attention over all of them.
void expect_merged_chunks(LseBase base) {
  TestExec ex;
  constexpr int64_t T = 9, S = 300, N = 2, Dq = 24, Dv = 16;
  const Inputs x(T, S, N, Dq, Dv, Format::kF32, 5);
  const auto over = [&](int64_t begin, int64_t count) {
    return attend(*ex, x.q.view(), slice_rows(x.k.view(), begin, count),
                  slice_rows(x.v.view(), begin, count), {T}, {count}, CausalMask::kFull, 0.25f,
                  base);
  };
  const auto whole = over(0, S);
  Rng rng(6, 1);
  for (int round = 0; round < 10; ++round) {
    auto merged = over(0, 0);
    for (int64_t begin = 0; begin < S;) {
      // Some chunks are empty.
      const int64_t count = std::min<int64_t>(S - begin, rng.next_below(150));
      const auto part = over(begin, count);
      begin += count;
      FATHOM_EXPECT_OK(launch<MergeState>(*ex, "test",
                                          {.o_a = merged->o.view(),
                                           .lse_a = merged->lse.view(),
                                           .o_b = part->o.view(),
                                           .lse_b = part->lse.view(),
                                           .o = merged->o.view(),
                                           .lse = merged->lse.view(),
                                           .base = base}));
    }
    for (int64_t i = 0; i < whole->o.size(); ++i)
      ASSERT_NEAR(merged->o[i], whole->o[i], 2e-6);
    for (int64_t i = 0; i < T * N; ++i)
      ASSERT_NEAR(merged->lse[i], whole->lse[i], 4e-6);
  }
}

TEST(RaggedAttention, MergedChunksOfTheKeysGiveAttentionOverAllOfThem) {
  expect_merged_chunks(LseBase::kE);
}

TEST(RaggedAttention, MergedChunksAgreeInBase2AsWell) {
  expect_merged_chunks(LseBase::k2);
}

TEST(RaggedAttention, AWindowIsAttentionOverTheLastKeysAlone) {
  TestExec ex;
  constexpr int64_t T = 6, S = 150, N = 2, Dq = 24, Dv = 16, kWindow = 70;
  for (const std::string& variant : variants_of<RaggedAttention>()) {
    const Inputs x(T, S, N, Dq, Dv, format_of(variant), 11);
    const TestTensor q_offsets({2}, Format::kI32, offsets_of({T}));
    const TestTensor kv_offsets({2}, Format::kI32, offsets_of({S}));
    const TestTensor o({T, N, Dv}, x.q.view().format, NAN);
    Exec& pinned = ex.with("ragged_attention", variant);
    FATHOM_EXPECT_OK(launch<RaggedAttention>(pinned, "test",
                                             {.q = x.q.view(),
                                              .k = x.k.view(),
                                              .v = x.v.view(),
                                              .q_offsets = q_offsets.view(),
                                              .kv_offsets = kv_offsets.view(),
                                              .o = o.view(),
                                              .lse = {},
                                              .scale = 0.25f,
                                              .window_left = kWindow}));
    for (int64_t t = 0; t < T; ++t) {
      const int64_t last = t + S - T;
      const auto alone = attend(
          pinned, slice_rows(x.q.view(), t, 1), slice_rows(x.k.view(), last - kWindow, kWindow + 1),
          slice_rows(x.v.view(), last - kWindow, kWindow + 1), {1}, {kWindow + 1});
      for (int64_t i = 0; i < N * Dv; ++i)
        ASSERT_NEAR(o[t * N * Dv + i], alone->o[i], 0.01) << variant << ", query " << t;
    }
  }
}

TEST(RaggedAttention, ReadsValuesFromASliceOfTheProjection) {
  TestExec ex;
  for (const std::string& variant : variants_of<RaggedAttention>()) {
    constexpr int64_t S = 70, N = 2;
    const Format format = format_of(variant);
    const Inputs x(S, S, N, 16, 16, format, 7);
    TestTensor kv({S, N, 40}, format, NAN);  // [16 of nobody | 16 of v | 8 of nobody]
    for (int64_t i = 0; i < x.v.size(); ++i)
      kv.set(i / 16 * 40 + 16 + i % 16, x.v[i]);
    Exec& exec = ex.with("ragged_attention", variant);

    const auto packed = attend(exec, x.q.view(), x.k.view(), x.v.view(), {S}, {S});
    const auto sliced =
        attend(exec, x.q.view(), x.k.view(), slice_cols(kv.view(), 16, 16), {S}, {S});

    EXPECT_EQ(sliced->o.bytes(), packed->o.bytes());
  }
}

TEST(RaggedAttention, RefusesOffsetsThatDoNotCoverTheRows) {
  TestExec ex;
  const Inputs x(4, 4, 1, 4, 4, Format::kF32, 8);
  const TestTensor o({4, 1, 4}, Format::kF32);
  const auto status_of = [&](const std::vector<float>& q_offsets) {
    const TestTensor offsets({3}, Format::kI32, q_offsets);
    const TestTensor kv_offsets({3}, Format::kI32, {0, 2, 4});
    return launch<RaggedAttention>(*ex, "test",
                                   {.q = x.q.view(),
                                    .k = x.k.view(),
                                    .v = x.v.view(),
                                    .q_offsets = offsets.view(),
                                    .kv_offsets = kv_offsets.view(),
                                    .o = o.view(),
                                    .lse = {}})
        .message();
  };

  EXPECT_EQ(status_of({0, 1, 4}), "");
  EXPECT_NE(status_of({1, 2, 4}).find("q_offsets[0] is 1"), std::string::npos);
  EXPECT_NE(status_of({0, 3, 2}).find("q_offsets[2] is 2 but q_offsets[1] is 3"),
            std::string::npos);
  EXPECT_NE(status_of({0, 1, 3}).find("q_offsets[2] is 3 but there are 4"), std::string::npos);
}

TEST(RaggedAttention, CountsVisiblePairsAndADryRunNeedsNoData) {
  const auto args = [](void* q_offsets, void* kv_offsets) {
    return RaggedAttention::Args{.q = make_view(nullptr, {6, 2, 8}, Format::kBf16),
                                 .k = make_view(nullptr, {10, 2, 8}, Format::kBf16),
                                 .v = make_view(nullptr, {10, 2, 4}, Format::kBf16),
                                 .q_offsets = make_view(q_offsets, {3}, Format::kI32),
                                 .kv_offsets = make_view(kv_offsets, {3}, Format::kI32),
                                 .o = make_view(nullptr, {6, 2, 4}, Format::kBf16),
                                 .lse = {}};
  };
  int32_t q_offsets[] = {0, 3, 6};
  int32_t kv_offsets[] = {0, 5, 10};

  // Three queries see 3, 4 and 5 keys.
  const double flops = 2.0 * 2 * 12 * 2 * (8 + 4);
  EXPECT_EQ(RaggedAttention::cost(args(q_offsets, kv_offsets)).flops, flops);
  EXPECT_EQ(RaggedAttention::cost(args(nullptr, nullptr)).flops, flops);

  Arena scratch;
  Exec dry;
  dry.backend = Backend::kDry;
  dry.scratch = &scratch;
  FATHOM_EXPECT_OK(launch<RaggedAttention>(dry, "test", args(nullptr, nullptr)));
  EXPECT_GE(scratch.high_water(), RaggedAttention::workspace(args(nullptr, nullptr), 1));
}

}  // namespace
}  // namespace fathom
