#include "fathom/kernels/attn/merge_state/merge_state.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Result1 {
  float o;
  float lse;
};

/// Merges one number a side.
Result1 merge(
    TestExec& ex, const std::string& variant, Result1 a, Result1 b, LseBase base = LseBase::kE) {
  const TestTensor o_a({1, 1, 1}, Format::kF32, a.o);
  const TestTensor o_b({1, 1, 1}, Format::kF32, b.o);
  const TestTensor lse_a({1, 1}, Format::kF32, a.lse);
  const TestTensor lse_b({1, 1}, Format::kF32, b.lse);
  const TestTensor o({1, 1, 1}, Format::kF32, NAN);
  const TestTensor lse({1, 1}, Format::kF32, NAN);
  FATHOM_EXPECT_OK(launch<MergeState>(ex.with("merge_state", variant), "test",
                                      {.o_a = o_a.view(),
                                       .lse_a = lse_a.view(),
                                       .o_b = o_b.view(),
                                       .lse_b = lse_b.view(),
                                       .o = o.view(),
                                       .lse = lse.view(),
                                       .base = base}));
  return {o[0], lse[0]};
}

TEST(MergeState, GivesTheWorkedExample) {
  TestExec ex;
  for (const std::string& variant : variants_of<MergeState>()) {
    const Result1 merged = merge(ex, variant, {17.310586f, 2.313262f}, {39.241418f, 3.078890f});

    EXPECT_NEAR(merged.o, 32.280010, 1e-5);
    EXPECT_NEAR(merged.lse, 3.460773, 1e-6);
  }
}

TEST(MergeState, TakesBase2OnlyWhenToldSo) {
  TestExec ex;
  for (const std::string& variant : variants_of<MergeState>()) {
    const Result1 a = {17.310586f, 3.337331f};
    const Result1 b = {39.241418f, 4.441899f};

    EXPECT_NEAR(merge(ex, variant, a, b, LseBase::k2).o, 32.280010, 1e-5);
    EXPECT_NEAR(merge(ex, variant, a, b, LseBase::k2).lse, 3.460773 / std::log(2.0), 1e-5);
    EXPECT_NEAR(merge(ex, variant, a, b, LseBase::kE).o, 33.783163, 1e-5);  // the trap
  }
}

TEST(MergeState, TakesAnInfinityOfEitherSignForNoKeys) {
  TestExec ex;
  for (const std::string& variant : variants_of<MergeState>()) {
    for (float empty : {kInf, -kInf}) {
      const Result1 without_a = merge(ex, variant, {NAN, empty}, {5.0f, 1.25f});
      EXPECT_EQ(without_a.o, 5.0f);
      EXPECT_EQ(without_a.lse, 1.25f);
      const Result1 without_b = merge(ex, variant, {5.0f, 1.25f}, {NAN, empty});
      EXPECT_EQ(without_b.o, 5.0f);
      EXPECT_EQ(without_b.lse, 1.25f);
      for (float other : {kInf, -kInf}) {
        const Result1 nothing = merge(ex, variant, {NAN, empty}, {NAN, other});
        EXPECT_EQ(nothing.o, 0.0f);
        EXPECT_EQ(nothing.lse, -kInf);
      }
    }
  }
}

TEST(MergeState, DoesNotOverflowForLargeScores) {
  TestExec ex;
  for (const std::string& variant : variants_of<MergeState>()) {
    const Result1 merged = merge(ex, variant, {1.0f, 3e4f}, {3.0f, 3e4f});

    EXPECT_EQ(merged.o, 2.0f);
    EXPECT_NEAR(merged.lse, 30000.693, 2e-3);
  }
}

TEST(MergeState, MayWriteOverItsFirstSide) {
  TestExec ex;
  for (const std::string& variant : variants_of<MergeState>()) {
    const TestTensor o_a({1, 2, 2}, Format::kBf16, {1, 2, 3, 4});
    const TestTensor o_b({1, 2, 2}, Format::kBf16, {3, 4, 7, 8});
    const TestTensor lse_a({1, 2}, Format::kF32, {0, 2});
    const TestTensor lse_b({1, 2}, Format::kF32, {0, -kInf});

    FATHOM_EXPECT_OK(launch<MergeState>(ex.with("merge_state", variant), "test",
                                        {.o_a = o_a.view(),
                                         .lse_a = lse_a.view(),
                                         .o_b = o_b.view(),
                                         .lse_b = lse_b.view(),
                                         .o = o_a.view(),
                                         .lse = lse_a.view()}));

    EXPECT_EQ(o_a.values(), (std::vector<float>{2, 3, 3, 4}));
    EXPECT_NEAR(lse_a[0], std::log(2.0), 1e-6);
    EXPECT_EQ(lse_a[1], 2.0f);
  }
}

TEST(MergeState, VariantsGiveTheSameBits) {
  TestExec ex;
  Rng rng(5, 1);
  TestTensor o_a({7, 3, 37}, Format::kBf16);
  TestTensor o_b({7, 3, 37}, Format::kF32);
  TestTensor lse_a({7, 3}, Format::kF32);
  TestTensor lse_b({7, 3}, Format::kF32);
  for (TestTensor* t : {&o_a, &o_b, &lse_a, &lse_b})
    t->randomise(rng, 3.0f);
  std::vector<std::vector<std::byte>> results;
  for (const std::string& variant : variants_of<MergeState>()) {
    const TestTensor o({7, 3, 37}, Format::kBf16);
    const TestTensor lse({7, 3}, Format::kF32);
    FATHOM_EXPECT_OK(launch<MergeState>(ex.with("merge_state", variant), "test",
                                        {.o_a = o_a.view(),
                                         .lse_a = lse_a.view(),
                                         .o_b = o_b.view(),
                                         .lse_b = lse_b.view(),
                                         .o = o.view(),
                                         .lse = lse.view()}));
    results.push_back(o.bytes());
    results.back().insert(results.back().end(), lse.bytes().begin(), lse.bytes().end());
  }
  for (const auto& bytes : results)
    EXPECT_EQ(bytes, results[0]);
}

}  // namespace
}  // namespace fathom
