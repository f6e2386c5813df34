#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/kernels/attn/kv_write/kv_write.h"
#include "fathom/kernels/attn/mla_concat/mla_concat.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

/// Inputs of five tokens and three heads.
struct Step {
  static constexpr int64_t T = 5, N = 3, L = 40, R = 6, D = L + R;
  TestTensor q_lat{{T, N, L}, Format::kBf16};
  TestTensor q_pe{{T, N, R}, Format::kBf16};
  TestTensor c{{T, L}, Format::kBf16};
  TestTensor k_pe{{T, R}, Format::kBf16};
  TestTensor positions{{T}, Format::kI32, {3, 1, 0, 2, 3}};
  TestTensor table{{4, R}, Format::kF32};
  TestTensor slots{{T}, Format::kI64, {7, 0, -1, 3, 5}};

  Step() {
    Rng rng(3, 1);
    for (TestTensor* t : {&q_lat, &q_pe, &c, &k_pe, &table})
      t->randomise(rng, 2.0f);
  }

  MlaRopeWrite::Args args(const TestTensor& q, const TestTensor& cache) const {
    return {.q_lat = q_lat.view(),
            .q_pe = q_pe.view(),
            .c = c.view(),
            .k_pe = k_pe.view(),
            .positions = positions.view(),
            .table = table.view(),
            .slots = slots.view(),
            .q = q.view(),
            .cache = cache.view()};
  }
};

TEST(MlaRopeWrite, EqualsRotationConcatenationAndCacheWriteInSequence) {
  TestExec ex;
  const Step s;
  for (const std::string& variant : variants_of<MlaRopeWrite>()) {
    const TestTensor q({Step::T, Step::N, Step::D}, Format::kBf16, NAN);
    const TestTensor cache({2, 4, Step::D}, Format::kBf16, NAN);
    FATHOM_EXPECT_OK(
        launch<MlaRopeWrite>(ex.with("mla_rope_quant_fp8", variant), "test", s.args(q, cache)));

    const TestTensor q_pe({Step::T, Step::N, Step::R}, Format::kBf16, s.q_pe.values());
    const TestTensor k_pe({Step::T, Step::R}, Format::kBf16, s.k_pe.values());
    const TestTensor q_steps({Step::T, Step::N, Step::D}, Format::kBf16, NAN);
    const TestTensor cache_steps({2, 4, Step::D}, Format::kBf16, NAN);
    FATHOM_EXPECT_OK(launch<RopeInplace>(*ex, "test",
                                         {.q = q_pe.view(),
                                          .k = k_pe.view(),
                                          .positions = s.positions.view(),
                                          .table = s.table.view()}));
    FATHOM_EXPECT_OK(launch<ConcatAbsorbedQ>(
        *ex, "test", {.q_lat = s.q_lat.view(), .q_pe = q_pe.view(), .q = q_steps.view()}));
    FATHOM_EXPECT_OK(launch<KvWrite>(*ex, "test",
                                     {.c = s.c.view(),
                                      .k_pe = k_pe.view(),
                                      .slots = s.slots.view(),
                                      .cache = cache_steps.view()}));

    EXPECT_EQ(q.bytes(), q_steps.bytes()) << variant;
    EXPECT_EQ(cache.bytes(), cache_steps.bytes()) << variant;
  }
}

TEST(MlaRopeWrite, VariantsGiveTheSameCodes) {
  TestExec ex;
  const Step s;
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    std::vector<std::vector<std::byte>> results;
    for (const std::string& variant : variants_of<MlaRopeWrite>()) {
      const TestTensor q({Step::T, Step::N, Step::D}, Format::kE4m3);
      const TestTensor cache({2, 4, Step::D}, Format::kE4m3);
      MlaRopeWrite::Args args = s.args(q, cache);
      args.style = style;
      args.q_scale = 0.013f;
      args.kv_scale = 0.31f;
      FATHOM_EXPECT_OK(launch<MlaRopeWrite>(ex.with("mla_rope_quant_fp8", variant), "test", args));
      results.push_back(q.bytes());
      results.back().insert(results.back().end(), cache.bytes().begin(), cache.bytes().end());
    }
    for (const auto& bytes : results)
      EXPECT_EQ(bytes, results[0]);
  }
}

TEST(MlaRopeWrite, EncodesEveryFloatAsTheFormatDoes) {
  TestExec ex;
  // All magnitudes of bf16: subnormals, ties, saturation, infinity and NaN.
  constexpr int64_t kAll = 1 << 16;
  TestTensor lat({1, 1, kAll}, Format::kBf16);
  for (int64_t i = 0; i < kAll; ++i)
    lat.view().as<Bf16>()[i] = Bf16{static_cast<uint16_t>(i)};
  const TestTensor pe({1, 1, 2}, Format::kBf16);
  const TestTensor table({1, 2}, Format::kF32, {1, 0});
  const TestTensor zero({1}, Format::kI32, 0.0f);
  const TestTensor slot({1}, Format::kI64, 0.0f);
  for (const std::string& variant : variants_of<MlaRopeWrite>()) {
    const TestTensor q({1, 1, kAll + 2}, Format::kE4m3);
    const TestTensor cache({1, 1, kAll + 2}, Format::kE4m3);
    FATHOM_EXPECT_OK(launch<MlaRopeWrite>(ex.with("mla_rope_quant_fp8", variant), "test",
                                          {.q_lat = lat.view(),
                                           .q_pe = pe.view(),
                                           .c = reshape(lat.view(), {1, kAll}),
                                           .k_pe = reshape(pe.view(), {1, 2}),
                                           .positions = zero.view(),
                                           .table = table.view(),
                                           .slots = slot.view(),
                                           .q = q.view(),
                                           .cache = cache.view()}));
    for (int64_t i = 0; i < kAll; ++i) {
      const E4m3 expected = e4m3_from_float(lat[i]);
      ASSERT_EQ(q.view().as<E4m3>()[i], expected) << variant << ", bf16 code " << i;
      ASSERT_EQ(cache.view().as<E4m3>()[i], expected) << variant << ", bf16 code " << i;
    }
  }
}

TEST(MlaRopeWrite, RefusesScalesOfFormatsThatHaveNone) {
  TestExec ex;
  const Step s;
  const TestTensor q({Step::T, Step::N, Step::D}, Format::kBf16);
  const TestTensor cache({2, 4, Step::D}, Format::kE4m3);
  MlaRopeWrite::Args args = s.args(q, cache);
  args.q_scale = 2.0f;

  Status status = launch<MlaRopeWrite>(*ex, "test", args);
  EXPECT_NE(status.message().find("q_scale is 2 but must be 1 for bf16"), std::string::npos)
      << status.message();

  args.q_scale = 1.0f;
  args.kv_scale = NAN;
  status = launch<MlaRopeWrite>(*ex, "test", args);
  EXPECT_NE(status.message().find("kv_scale is nan"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace fathom
