#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

/// Random codes and scales of [T,N,D], and the bf16 numbers that they stand for.
struct Codes {
  TestTensor codes, scales, values;

  Codes(int64_t T, int64_t N, int64_t D, uint64_t seed)
      : codes({T, N, D / 2}, Format::kU8),
        scales({T, N, D / 16}, Format::kE4m3),
        values({T, N, D}, Format::kBf16) {
    Rng rng(seed, 1);
    for (int64_t i = 0; i < codes.size(); ++i)
      codes.set(i, static_cast<float>(rng.next_below(256)));
    for (int64_t i = 0; i < scales.size(); ++i)
      scales.set(i, 0.05f * static_cast<float>(1 + rng.next_below(20)));
    const auto* packed = reinterpret_cast<const uint8_t*>(codes.bytes().data());
    for (int64_t i = 0; i < values.size(); ++i)
      values.set(i, to_float(unpack_e2m1(packed, i)) * scales[i / 16]);
  }
};

TEST(Nvfp4QkAttention, GivesTheBitsOfRaggedAttentionOverTheDecodedValues) {
  // Globals that are powers of two change nothing but exponents.
  constexpr int64_t T = 200, N = 4, Nk = 2, D = 80, Dv = 40;
  const Codes q(T, N, D, 1), k(T, Nk, D, 2);
  const TestTensor q_global({N}, Format::kF32, {1, 0.5f, 2, 4});
  const TestTensor k_global({Nk}, Format::kF32, {8, 0.25f});
  TestTensor v({T, Nk, Dv}, Format::kBf16);
  Rng rng(3, 1);
  v.randomise(rng);
  const TestTensor cu_seqlens({4}, Format::kI32, {0, 3, 3, T});
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4QkAttention>()) {
    const TestTensor o({T, N, Dv}, Format::kBf16, NAN), lse({T, N}, Format::kF32, NAN);
    FATHOM_EXPECT_OK(launch<Nvfp4QkAttention>(ex.with("nvfp4_qk_attention", variant), "test",
                                              {.q = q.codes.view(),
                                               .q_scales = q.scales.view(),
                                               .q_global = q_global.view(),
                                               .k = k.codes.view(),
                                               .k_scales = k.scales.view(),
                                               .k_global = k_global.view(),
                                               .v = v.view(),
                                               .cu_seqlens = cu_seqlens.view(),
                                               .o = o.view(),
                                               .lse = lse.view(),
                                               .scale = 0.1f}));
    for (int64_t n = 0; n < N; ++n) {
      // One head at a time, whose globals are in the scale.
      const auto head_of = [](const TestTensor& x, int64_t head) {
        View view = x.view();
        view.data = view.as<std::byte>() + head * view.stride(1) * element_bytes(view.format);
        view.dims[1] = 1;
        return view;
      };
      const TestTensor expected({T, 1, Dv}, Format::kBf16, NAN);
      const TestTensor expected_lse({T, 1}, Format::kF32, NAN);
      FATHOM_EXPECT_OK(launch<RaggedAttention>(ex.with("ragged_attention", variant), "test",
                                               {.q = head_of(q.values, n),
                                                .k = head_of(k.values, n / 2),
                                                .v = head_of(v, n / 2),
                                                .q_offsets = cu_seqlens.view(),
                                                .kv_offsets = cu_seqlens.view(),
                                                .o = expected.view(),
                                                .lse = expected_lse.view(),
                                                .scale = 0.1f * q_global[n] * k_global[n / 2]}));
      for (int64_t t = 0; t < T; ++t) {
        ASSERT_EQ(lse[t * N + n], expected_lse[t]) << variant << ", token " << t << " head " << n;
        for (int64_t d = 0; d < Dv; ++d)
          ASSERT_EQ(o[(t * N + n) * Dv + d], expected[t * Dv + d]) << variant << ", token " << t;
      }
    }
  }
}

TEST(Nvfp4QkAttention, ThreadsDoNotChangeBits) {
  constexpr int64_t T = 300, N = 3, D = 64, Dv = 32;
  const Codes q(T, N, D, 4), k(T, N, D, 5);
  const TestTensor global({N}, Format::kF32, 0.3f);
  TestTensor v({T, N, Dv}, Format::kBf16);
  Rng rng(6, 1);
  v.randomise(rng);
  const TestTensor cu_seqlens({3}, Format::kI32, {0, 100, T});
  for (const std::string& variant : variants_of<Nvfp4QkAttention>()) {
    std::vector<std::byte> first;
    for (int threads : {1, 2, 3, 8}) {
      TestExec ex(threads);
      const TestTensor o({T, N, Dv}, Format::kF32, NAN);
      FATHOM_EXPECT_OK(launch<Nvfp4QkAttention>(ex.with("nvfp4_qk_attention", variant), "test",
                                                {.q = q.codes.view(),
                                                 .q_scales = q.scales.view(),
                                                 .q_global = global.view(),
                                                 .k = k.codes.view(),
                                                 .k_scales = k.scales.view(),
                                                 .k_global = global.view(),
                                                 .v = v.view(),
                                                 .cu_seqlens = cu_seqlens.view(),
                                                 .o = o.view(),
                                                 .scale = 0.1f}));
      if (first.empty()) first = o.bytes();
      EXPECT_EQ(o.bytes(), first) << variant << ", " << threads << " threads";
    }
  }
}

TEST(Nvfp4QkAttention, RefusesOffsetsThatDoNotCoverTheRows) {
  TestExec ex;
  const Codes x(4, 1, 16, 7);
  const TestTensor global({1}, Format::kF32, 1.0f), v({4, 1, 8}, Format::kBf16);
  const TestTensor o({4, 1, 8}, Format::kBf16);
  TestTensor cu_seqlens({3}, Format::kI32, {0, 3, 4});
  const auto message = [&] {
    return launch<Nvfp4QkAttention>(*ex, "test",
                                    {.q = x.codes.view(),
                                     .q_scales = x.scales.view(),
                                     .q_global = global.view(),
                                     .k = x.codes.view(),
                                     .k_scales = x.scales.view(),
                                     .k_global = global.view(),
                                     .v = v.view(),
                                     .cu_seqlens = cu_seqlens.view(),
                                     .o = o.view()})
        .message();
  };
  EXPECT_EQ(message(), "");

  cu_seqlens.set(2, 5);
  EXPECT_NE(message().find("cu_seqlens[2] is 5 but there are 4 rows"), std::string::npos)
      << message();
  cu_seqlens.set(1, 6);
  EXPECT_NE(message().find("cu_seqlens[2] is 5 but cu_seqlens[1] is 6"), std::string::npos)
      << message();
  cu_seqlens.set(0, 1);
  EXPECT_NE(message().find("cu_seqlens[0] is 1 but must be 0"), std::string::npos) << message();
}

}  // namespace
}  // namespace fathom
