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
        launch<MlaRopeWrite>(ex.with("mla_rope_write", variant), "test", s.args(q, cache)));

    const TestTensor q_pe({Step::T, Step::N, Step::R}, Format::kBf16, s.q_pe.values());
    const TestTensor k_pe({Step::T, Step::R}, Format::kBf16, s.k_pe.values());
    const TestTensor q_steps({Step::T, Step::N, Step::D}, Format::kBf16, NAN);
    const TestTensor cache_steps({2, 4, Step::D}, Format::kBf16, NAN);
    FATHOM_EXPECT_OK(launch<RopeInplace>(*ex, "test",
                                         {.q = q_pe.view(),
                                          .k = reshape(k_pe.view(), {Step::T, 1, Step::R}),
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
      FATHOM_EXPECT_OK(launch<MlaRopeWrite>(ex.with("mla_rope_write", variant), "test", args));
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
    FATHOM_EXPECT_OK(launch<MlaRopeWrite>(ex.with("mla_rope_write", variant), "test",
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

/// The outputs of MlaRopeQuantFp8 for the inputs of a Step, as slices of merged buffers.
struct Merged {
  TestTensor q;
  TestTensor k;

  explicit Merged(Format format)
      : q({Step::T, Step::N, Step::D}, format), k({Step::T, Step::D}, format) {}

  MlaRopeQuantFp8::Args args(const Step& s) const {
    return {.q_pe = s.q_pe.view(),
            .k_pe = s.k_pe.view(),
            .q_lat = s.q_lat.view(),
            .c = s.c.view(),
            .positions = s.positions.view(),
            .table = s.table.view(),
            .q_pe_out = slice_cols(q.view(), Step::L, Step::R),
            .k_pe_out = slice_cols(k.view(), Step::L, Step::R),
            .q_lat_out = slice_cols(q.view(), 0, Step::L),
            .c_out = slice_cols(k.view(), 0, Step::L)};
  }
};

TEST(MlaRopeQuantFp8, VariantsGiveTheSameCodes) {
  TestExec ex;
  const Step s;
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    for (const Format format : {Format::kE4m3, Format::kE5m2}) {
      std::vector<std::vector<std::byte>> results;
      for (const std::string& variant : variants_of<MlaRopeQuantFp8>()) {
        const Merged out(format);
        MlaRopeQuantFp8::Args args = out.args(s);
        args.style = style;
        args.q_scale = 71.0f;
        args.kv_scale = 1.3f;
        FATHOM_EXPECT_OK(
            launch<MlaRopeQuantFp8>(ex.with("mla_rope_quant_fp8", variant), "test", args));
        results.push_back(out.q.bytes());
        results.back().insert(results.back().end(), out.k.bytes().begin(), out.k.bytes().end());
      }
      for (const auto& bytes : results)
        EXPECT_EQ(bytes, results[0]);
    }
  }
}

TEST(MlaRopeQuantFp8, FillsMergedBuffersAsTheCacheWriteDoes) {
  TestExec ex;
  const Step s;
  for (const std::string& variant : variants_of<MlaRopeQuantFp8>()) {
    const Merged merged(Format::kE4m3);
    MlaRopeQuantFp8::Args args = merged.args(s);
    args.style = RopeStyle::kInterleaved;
    args.q_scale = 8.0f;  // powers of two: their reciprocals divide without rounding
    args.kv_scale = 0.5f;
    FATHOM_EXPECT_OK(launch<MlaRopeQuantFp8>(ex.with("mla_rope_quant_fp8", variant), "test", args));

    const TestTensor q({Step::T, Step::N, Step::D}, Format::kE4m3);
    const TestTensor cache({1, Step::T, Step::D}, Format::kE4m3);
    const TestTensor slots({Step::T}, Format::kI64, {0, 1, 2, 3, 4});
    MlaRopeWrite::Args write = s.args(q, cache);
    write.slots = slots.view();
    write.q_scale = 0.125f;
    write.kv_scale = 2.0f;
    FATHOM_EXPECT_OK(launch<MlaRopeWrite>(*ex, "test", write));

    EXPECT_EQ(merged.q.bytes(), q.bytes()) << variant;
    EXPECT_EQ(merged.k.bytes(), cache.bytes()) << variant;
  }
}

TEST(MlaRopeQuantFp8, EncodesEveryFloatAsTheFormatDoes) {
  TestExec ex;
  // All numbers of half precision: subnormals, ties, saturation, infinity and NaN.
  constexpr int64_t kAll = 1 << 16;
  const TestTensor pe({1, 2}, Format::kF16);
  const TestTensor table({1, 2}, Format::kF32, {1, 0});
  const TestTensor zero({1}, Format::kI64, 0.0f);
  TestTensor x({1, kAll}, Format::kF16);
  for (int64_t i = 0; i < kAll; ++i)
    x.view().as<F16>()[i] = F16{static_cast<uint16_t>(i)};
  for (const Format format : {Format::kE4m3, Format::kE5m2}) {
    for (const std::string& variant : variants_of<MlaRopeQuantFp8>()) {
      const TestTensor codes({1, kAll}, format);
      const TestTensor pe_codes({1, 2}, format);
      FATHOM_EXPECT_OK(launch<MlaRopeQuantFp8>(ex.with("mla_rope_quant_fp8", variant), "test",
                                               {.q_pe = reshape(pe.view(), {1, 1, 2}),
                                                .k_pe = pe.view(),
                                                .q_lat = reshape(x.view(), {1, 1, kAll}),
                                                .c = x.view(),
                                                .positions = zero.view(),
                                                .table = table.view(),
                                                .q_pe_out = reshape(pe_codes.view(), {1, 1, 2}),
                                                .k_pe_out = pe_codes.view(),
                                                .q_lat_out = reshape(codes.view(), {1, 1, kAll}),
                                                .c_out = codes.view(),
                                                .kv_scale = 3.0f}));
      for (int64_t i = 0; i < kAll; ++i) {
        const uint8_t expected = format == Format::kE4m3 ? e4m3_from_float(x[i] * 3.0f).bits
                                                         : e5m2_from_float(x[i] * 3.0f).bits;
        ASSERT_EQ(codes.view().as<uint8_t>()[i], expected) << variant << ", f16 code " << i;
      }
    }
  }
}

TEST(MlaRopeQuantFp8, RefusesOutputsOfDifferentFormatsAndScalesThatAreNone) {
  TestExec ex;
  const Step s;
  const Merged e4m3(Format::kE4m3);
  const Merged e5m2(Format::kE5m2);
  MlaRopeQuantFp8::Args args = e4m3.args(s);
  args.c_out = e5m2.args(s).c_out;

  Status status = launch<MlaRopeQuantFp8>(*ex, "test", args);
  EXPECT_NE(status.message().find("q_pe_out is e4m3 but c_out is e5m2"), std::string::npos)
      << status.message();

  args = e4m3.args(s);
  args.q_scale = 0.0f;
  status = launch<MlaRopeQuantFp8>(*ex, "test", args);
  EXPECT_NE(status.message().find("q_scale is 0"), std::string::npos) << status.message();
}

TEST(MlaRopeWrite, RoundsFloatsToBf16AsTheFormatDoes) {
  TestExec ex;
  // Every upper half with lower halves around ties: subnormals, overflow, infinity and NaN.
  constexpr uint32_t kLower[] = {0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  constexpr int64_t kAll = 6 << 16;
  TestTensor lat({1, 1, kAll}, Format::kF32);
  for (uint32_t i = 0; i < kAll; ++i)
    lat.view().as<uint32_t>()[i] = (i / 6) << 16 | kLower[i % 6];
  const TestTensor pe({1, 1, 2}, Format::kF32);
  const TestTensor table({1, 2}, Format::kF32, {1, 0});
  const TestTensor zero({1}, Format::kI32, 0.0f);
  const TestTensor slot({1}, Format::kI64, 0.0f);
  for (const std::string& variant : variants_of<MlaRopeWrite>()) {
    const TestTensor q({1, 1, kAll + 2}, Format::kBf16);
    const TestTensor cache({1, 1, kAll + 2}, Format::kBf16);
    FATHOM_EXPECT_OK(launch<MlaRopeWrite>(ex.with("mla_rope_write", variant), "test",
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
      const uint32_t bits = lat.view().as<uint32_t>()[i];
      // Dividing by 1 makes a signalling NaN quiet, as the rounding does.
      const Bf16 expected = bf16_from_float(float_from_bits(bits));
      ASSERT_EQ(q.view().as<Bf16>()[i].bits, expected.bits) << variant << ", float " << bits;
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
