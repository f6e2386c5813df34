#include "fathom/kernels/attn/mla_decode/mla_decode.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "fathom/kernels/attn/mla_decode/mla_decode_plan.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Keys of requests, in order, and the same keys in pages.
struct Paged {
  int64_t page_size;
  int64_t D;
  TestTensor cache;
  TestTensor block_table;
  TestTensor kv_lens;

  /// keys[b] has kv_lens[b] * D numbers. Pages are handed out from the last one on; what nobody
  /// owns is NaN.
  Paged(const std::vector<std::vector<float>>& keys, int64_t width, int64_t page, Format format)
      : page_size(page),
        D(width),
        cache({num_pages(keys) + 1, page, width}, format, NAN),
        block_table({static_cast<int64_t>(keys.size()), num_pages(keys) + 1}, Format::kI32, 1e9f),
        kv_lens({static_cast<int64_t>(keys.size())}, Format::kI32) {
    int64_t next = cache.view().dim(0) - 1;
    for (size_t b = 0; b < keys.size(); ++b) {
      const auto count = static_cast<int64_t>(keys[b].size()) / D;
      const auto row = static_cast<int64_t>(b) * block_table.view().dim(1);
      kv_lens.set(static_cast<int64_t>(b), static_cast<float>(count));
      for (int64_t j = 0; j < count; ++j) {
        if (j % page_size == 0) block_table.set(row + j / page_size, static_cast<float>(next--));
        const int64_t slot = (next + 1) * page_size + j % page_size;
        for (int64_t d = 0; d < D; ++d) {
          cache.set(slot * D + d, keys[b][static_cast<size_t>(j * D + d)]);
        }
      }
    }
  }

  int64_t num_pages(const std::vector<std::vector<float>>& keys) const {
    int64_t pages = 0;
    for (const auto& k : keys) {
      pages += (static_cast<int64_t>(k.size()) / D + page_size - 1) / page_size;
    }
    return pages;
  }

  MlaDecode::Args args(const TestTensor& q, const TestTensor& o, const TestTensor& lse) const {
    return {.q = q.view(),
            .cache = cache.view(),
            .block_table = block_table.view(),
            .kv_lens = kv_lens.view(),
            .o = o.view(),
            .lse = lse.view(),
            .scale = 0.2f};
  }
};

std::vector<std::vector<float>> random_keys(const std::vector<int64_t>& counts,
                                            int64_t D,
                                            uint64_t seed) {
  Rng rng(seed, 1);
  std::vector<std::vector<float>> keys;
  for (int64_t n : counts) {
    keys.emplace_back();
    for (int64_t i = 0; i < n * D; ++i) {
      keys.back().push_back(to_float(e4m3_from_float(rng.next_normal())));  // exact in all formats
    }
  }
  return keys;
}

Format format_of(const std::string& variant) {
  return variant == "portable" ? Format::kF32 : Format::kBf16;
}

/// Bytes of o, then of lse.
std::vector<std::byte> bytes_of(const TestTensor& o, const TestTensor& lse) {
  std::vector<std::byte> bytes = o.bytes();
  bytes.insert(bytes.end(), lse.bytes().begin(), lse.bytes().end());
  return bytes;
}

/// Runs MlaDecode with query q on the keys.
std::vector<std::byte> decode(Exec& ex, const TestTensor& q, const Paged& paged, int64_t L) {
  const int64_t B = q.view().dim(0);
  const int64_t N = q.view().dim(1);
  const TestTensor o({B, N, L}, q.view().format, NAN);
  const TestTensor lse({B, N}, Format::kF32, NAN);
  FATHOM_EXPECT_OK(launch<MlaDecode>(ex, "test", paged.args(q, o, lse)));
  return bytes_of(o, lse);
}

TEST(MlaDecode, GivesTheWorkedExampleOfTheAbsorbedForm) {
  const std::vector<std::vector<float>> keys = {{1, -1, .5f, 0, 2, .5f, 0, 1, 0, 1, 1, 1}};
  TestExec ex;
  for (const std::string& variant : variants_of<MlaDecode>()) {
    const Paged paged(keys, 4, 2, format_of(variant));
    const TestTensor q({1, 2, 4}, format_of(variant), {1, 1, 1, 0, -.75f, -1, 0, 2});
    const TestTensor o({1, 2, 2}, format_of(variant), NAN);
    const TestTensor lse({1, 2}, Format::kF32, NAN);
    MlaDecode::Args args = paged.args(q, o, lse);
    args.scale = 0.5f;

    FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", args));

    const double tolerance = variant == "portable" ? 1e-6 : 4e-3;  // o is rounded to bf16
    expect_near(o.values(), {1.103042, .424340, .828465, .268537}, tolerance);
    expect_near(lse.values(), {2.013923, 1.330218}, 1e-6);
    // W_UV of each head gives the output of the expanded form.
    EXPECT_NEAR(o[0], 1.103042, tolerance);
    EXPECT_NEAR(o[0] + o[1], 1.527382, 2 * tolerance);
    EXPECT_NEAR(2 * o[2] - o[3], 1.388394, 3 * tolerance);
  }
}

TEST(MlaDecode, AbsorbedFormEqualsExpandedForm) {
  constexpr int64_t N = 3, Dn = 5, Dr = 4, Dv = 6, L = 7, kKeys = 150;
  TestExec ex;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Rng rng(seed, 1);
    const auto random = [&](int64_t n) {
      std::vector<double> v;
      for (int64_t i = 0; i < n; ++i)
        v.push_back(double{rng.next_normal()});
      return v;
    };
    const auto c = random(kKeys * L), k_r = random(kKeys * Dr), q_n = random(N * Dn),
               q_r = random(N * Dr);
    const auto uk = random(N * Dn * L), uv = random(N * Dv * L);
    const auto at = [](const std::vector<double>& v, int64_t i) {
      return v[static_cast<size_t>(i)];
    };

    // Expanded: k = [W_UK c | k_r], v = W_UV c.
    TestTensor q({1, N, Dn + Dr}, Format::kF32);
    TestTensor k({kKeys, N, Dn + Dr}, Format::kF32);
    TestTensor v({kKeys, N, Dv}, Format::kF32);
    TestTensor q_abs({1, N, L + Dr}, Format::kF32);
    std::vector<float> latent_keys;
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t i = 0; i < Dn; ++i)
        q.set(n * (Dn + Dr) + i, static_cast<float>(at(q_n, n * Dn + i)));
      for (int64_t i = 0; i < Dr; ++i) {
        q.set(n * (Dn + Dr) + Dn + i, static_cast<float>(at(q_r, n * Dr + i)));
        q_abs.set(n * (L + Dr) + L + i, static_cast<float>(at(q_r, n * Dr + i)));
      }
      for (int64_t l = 0; l < L; ++l) {
        double sum = 0;
        for (int64_t i = 0; i < Dn; ++i)
          sum += at(q_n, n * Dn + i) * at(uk, (n * Dn + i) * L + l);
        q_abs.set(n * (L + Dr) + l, static_cast<float>(sum));
      }
    }
    for (int64_t j = 0; j < kKeys; ++j) {
      const auto up = [&](const std::vector<double>& w, int64_t row) {
        double sum = 0;
        for (int64_t l = 0; l < L; ++l)
          sum += at(w, row * L + l) * at(c, j * L + l);
        return static_cast<float>(sum);
      };
      for (int64_t n = 0; n < N; ++n) {
        for (int64_t i = 0; i < Dn; ++i)
          k.set((j * N + n) * (Dn + Dr) + i, up(uk, n * Dn + i));
        for (int64_t i = 0; i < Dr; ++i)
          k.set((j * N + n) * (Dn + Dr) + Dn + i, static_cast<float>(at(k_r, j * Dr + i)));
        for (int64_t i = 0; i < Dv; ++i)
          v.set((j * N + n) * Dv + i, up(uv, n * Dv + i));
      }
      for (int64_t l = 0; l < L; ++l)
        latent_keys.push_back(static_cast<float>(at(c, j * L + l)));
      for (int64_t i = 0; i < Dr; ++i)
        latent_keys.push_back(static_cast<float>(at(k_r, j * Dr + i)));
    }

    const TestTensor q_offsets({2}, Format::kI32, {0, 1});
    const TestTensor kv_offsets({2}, Format::kI32, {0, kKeys});
    const TestTensor o_mha({1, N, Dv}, Format::kF32, NAN);
    const TestTensor lse_mha({1, N}, Format::kF32, NAN);
    FATHOM_EXPECT_OK(launch<RaggedAttention>(*ex, "test",
                                             {.q = q.view(),
                                              .k = k.view(),
                                              .v = v.view(),
                                              .q_offsets = q_offsets.view(),
                                              .kv_offsets = kv_offsets.view(),
                                              .o = o_mha.view(),
                                              .lse = lse_mha.view(),
                                              .scale = 0.2f}));
    const Paged paged({latent_keys}, L + Dr, 16, Format::kF32);
    const TestTensor o_lat({1, N, L}, Format::kF32, NAN);
    const TestTensor lse({1, N}, Format::kF32, NAN);
    FATHOM_EXPECT_OK(launch<MlaDecode>(*ex, "test", paged.args(q_abs, o_lat, lse)));

    for (int64_t n = 0; n < N; ++n) {
      EXPECT_NEAR(lse[n], lse_mha[n], 1e-5 * std::fabs(lse_mha[n]) + 1e-5) << "seed " << seed;
      for (int64_t i = 0; i < Dv; ++i) {
        double o = 0;
        for (int64_t l = 0; l < L; ++l)
          o += at(uv, (n * Dv + i) * L + l) * double{o_lat[n * L + l]};
        EXPECT_NEAR(o, o_mha[n * Dv + i], 2e-5) << "seed " << seed << " head " << n;
      }
    }
  }
}

TEST(MlaDecode, PageSizeDoesNotChangeBits) {
  TestExec ex;
  const auto keys = random_keys({1, 130, 601}, 48, 3);
  for (const std::string& variant : variants_of<MlaDecode>()) {
    Rng rng(4, 1);
    TestTensor q({3, 4, 48}, format_of(variant));
    q.randomise(rng);
    Exec& exec = ex.with("mla_decode", variant);
    const auto first = decode(exec, q, Paged(keys, 48, 1, format_of(variant)), 32);
    for (int64_t page_size : {2, 7, 16, 64, 128, 1000}) {
      EXPECT_EQ(decode(exec, q, Paged(keys, 48, page_size, format_of(variant)), 32), first)
          << variant << ", pages of " << page_size;
    }
  }
}

TEST(MlaDecode, ThreadsAndTheCutsTheyMakeDoNotChangeBits) {
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{2100}, {513, 0, 1700}, {9000}}) {
    const auto keys = random_keys(counts, 48, 5);
    for (const std::string& variant : variants_of<MlaDecode>()) {
      Rng rng(6, 1);
      TestTensor q({static_cast<int64_t>(counts.size()), 20, 48}, format_of(variant));
      q.randomise(rng);
      const Paged paged(keys, 48, 64, format_of(variant));
      std::vector<std::byte> first;
      for (int threads : {1, 2, 3, 8}) {
        TestExec ex(threads);
        const auto bytes = decode(ex.with("mla_decode", variant), q, paged, 32);
        if (first.empty()) first = bytes;
        EXPECT_EQ(bytes, first) << variant << ", " << threads << " threads";
      }
    }
  }
}

TEST(MlaDecode, WorkspaceNeverGrowsWhenTheBatchShrinks) {
  const auto workspace = [](int64_t B, int threads) {
    return MlaDecode::workspace({.q = make_view(nullptr, {B, 16, 576}, Format::kBf16),
                                 .cache = make_view(nullptr, {1024, 64, 576}, Format::kBf16),
                                 .block_table = make_view(nullptr, {B, 512}, Format::kI32),
                                 .kv_lens = make_view(nullptr, {B}, Format::kI32),
                                 .o = make_view(nullptr, {B, 16, 512}, Format::kBf16),
                                 .lse = make_view(nullptr, {B, 16}, Format::kF32)},
                                threads);
  };
  for (int threads : {1, 2, 16}) {
    for (int64_t B = 1; B < 200; ++B) {
      EXPECT_LE(workspace(B, threads), workspace(B + 1, threads)) << B << ", " << threads;
    }
  }
}

TEST(MlaDecode, SplitsCoverAllKeysInOrderAndStayFew) {
  using mla_decode::num_splits;
  using mla_decode::split_begin;
  EXPECT_EQ(split_begin(0), 0);
  for (int64_t i = 0; i < 80; ++i) {
    EXPECT_LT(split_begin(i), split_begin(i + 1));
    EXPECT_EQ(split_begin(i) % MlaDecode::kKeyBlock, 0);
  }
  EXPECT_EQ(split_begin(15), 7680);
  EXPECT_EQ(split_begin(16), 8192);
  EXPECT_EQ(split_begin(17), 9216);
  EXPECT_EQ(split_begin(24), 16384);
  EXPECT_EQ(num_splits(0), 0);
  EXPECT_EQ(num_splits(1), 1);
  EXPECT_EQ(num_splits(512), 1);
  EXPECT_EQ(num_splits(513), 2);
  EXPECT_LT(num_splits(163840), 60);
}

TEST(MlaDecode, AnE4m3CacheGivesTheBitsOfItsDecodedValues) {
  TestExec ex;
  const auto keys = random_keys({130, 65}, 80, 7);  // values that E4M3 holds
  Rng rng(8, 1);
  TestTensor q({2, 5, 80}, Format::kBf16);
  q.randomise(rng);
  for (const std::string& variant : variants_of<MlaDecode>()) {
    Exec& exec = ex.with("mla_decode", variant);
    EXPECT_EQ(decode(exec, q, Paged(keys, 80, 16, Format::kE4m3), 64),
              decode(exec, q, Paged(keys, 80, 16, Format::kBf16), 64))
        << variant;
  }
}

TEST(MlaDecode, EveryE4m3CodeIsReadAsItsValue) {
  // One key: o is its value, whatever the score.
  TestTensor cache({1, 1, 256}, Format::kE4m3);
  for (int64_t i = 0; i < 256; ++i) {
    const bool nan = (i & 127) == 127;
    cache.view().as<E4m3>()[i] = E4m3{static_cast<uint8_t>(nan ? 0 : i)};
  }
  const TestTensor table({1, 1}, Format::kI32, 0.0f);
  const TestTensor one({1}, Format::kI32, 1.0f);
  TestExec ex;
  for (const std::string& variant : variants_of<MlaDecode>()) {
    const TestTensor q({1, 1, 256}, Format::kBf16);
    const TestTensor o({1, 1, 256}, Format::kBf16, NAN);
    FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test",
                                       {.q = q.view(),
                                        .cache = cache.view(),
                                        .block_table = table.view(),
                                        .kv_lens = one.view(),
                                        .o = o.view(),
                                        .lse = {}}));
    EXPECT_EQ(o.values(), cache.values()) << variant;
  }
}

TEST(MlaDecodeMulti, EachQueryHasTheBitsOfADecodeOverItsKeys) {
  TestExec ex;
  constexpr int64_t Q = 3, N = 5, D = 48, L = 32;
  for (int64_t count : {2, 3, 64, 65, 66, 129, 513, 1026}) {
    const auto all = random_keys({count}, D, 9);
    for (const std::string& variant : variants_of<MlaDecodeMulti>()) {
      const Format format = format_of(variant);
      Rng rng(10, 1);
      TestTensor q({1, Q, N, D}, format);
      q.randomise(rng);
      const TestTensor o({1, Q, N, L}, format, NAN);
      const TestTensor lse({1, Q, N}, Format::kF32, NAN);
      FATHOM_EXPECT_OK(launch<MlaDecodeMulti>(ex.with("mla_decode_multi", variant), "test",
                                              Paged(all, D, 16, format).args(q, o, lse)));
      for (int64_t j = 0; j < Q; ++j) {
        const int64_t seen = std::max<int64_t>(count - Q + j + 1, 0);
        std::vector<float> some(all[0].begin(), all[0].begin() + seen * D);
        const TestTensor one_q({1, N, D}, format);
        std::memcpy(one_q.view().data, q.bytes().data() + j * N * D * element_bytes(format),
                    one_q.bytes().size());
        const auto alone =
            decode(ex.with("mla_decode", variant), one_q, Paged({some}, D, 16, format), L);
        const auto row_bytes = N * L * element_bytes(format);
        std::vector<std::byte> row(o.bytes().begin() + j * row_bytes,
                                   o.bytes().begin() + (j + 1) * row_bytes);
        row.insert(row.end(), lse.bytes().begin() + j * N * 4,
                   lse.bytes().begin() + (j + 1) * N * 4);
        EXPECT_EQ(row, alone) << variant << ", query " << j << " of " << count << " keys";
      }
    }
  }
}

TEST(MlaDecode, ARequestWithoutKeysIsZeroAndDoesNotReadThePages) {
  TestExec ex;
  for (const std::string& variant : variants_of<MlaDecode>()) {
    const Paged paged({{}, random_keys({1}, 8, 11)[0]}, 8, 4, format_of(variant));
    const TestTensor q({2, 1, 8}, format_of(variant), 1.0f);
    const TestTensor o({2, 1, 4}, format_of(variant), NAN);
    const TestTensor lse({2, 1}, Format::kF32, NAN);

    FATHOM_EXPECT_OK(
        launch<MlaDecode>(ex.with("mla_decode", variant), "test", paged.args(q, o, lse)));

    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(o[i], 0.0f);
      EXPECT_EQ(o[4 + i], random_keys({1}, 8, 11)[0][static_cast<size_t>(i)]);
    }
    EXPECT_EQ(lse[0], -kInf);
  }
}

TEST(MlaDecode, RefusesLengthsAndPagesThatDoNotExist) {
  TestExec ex;
  Paged paged(random_keys({20, 20}, 8, 12), 8, 16, Format::kBf16);
  const TestTensor q({2, 1, 8}, Format::kBf16);
  const TestTensor o({2, 1, 4}, Format::kBf16);
  const TestTensor lse({2, 1}, Format::kF32);
  const auto message = [&] {
    return launch<MlaDecode>(*ex, "test", paged.args(q, o, lse)).message();
  };
  EXPECT_EQ(message(), "");

  paged.kv_lens.set(1, 81);
  EXPECT_NE(message().find("kv_lens[1] is 81 but the block table has room for 80 keys"),
            std::string::npos)
      << message();
  paged.kv_lens.set(1, -1);
  EXPECT_NE(message().find("kv_lens[1] is -1"), std::string::npos) << message();
  paged.kv_lens.set(1, 33);
  EXPECT_NE(message().find("block_table[1]: page 2 is number 1000000000"), std::string::npos)
      << message();
}

TEST(MlaDecode, RefusesAScaleForACacheThatHasNone) {
  TestExec ex;
  const Paged paged(random_keys({3}, 8, 13), 8, 16, Format::kBf16);
  const TestTensor q({1, 1, 8}, Format::kBf16);
  const TestTensor o({1, 1, 4}, Format::kBf16);
  const TestTensor lse({1, 1}, Format::kF32);
  MlaDecode::Args args = paged.args(q, o, lse);
  args.kv_scale = 0.5f;

  const Status status = launch<MlaDecode>(*ex, "test", args);

  EXPECT_NE(status.message().find("kv_scale is 0.5 but must be 1 for bf16"), std::string::npos)
      << status.message();
}

TEST(MlaDecode, CountsTheKeysOfTheRequestsAndADryRunTakesFullPages) {
  Paged paged(random_keys({20, 3}, 8, 14), 8, 16, Format::kBf16);
  const TestTensor q({2, 4, 8}, Format::kBf16);
  const TestTensor o({2, 4, 6}, Format::kBf16);
  const TestTensor lse({2, 4}, Format::kF32);
  MlaDecode::Args args = paged.args(q, o, lse);

  const Cost cost = cost_of<MlaDecode>(args);
  EXPECT_EQ(cost.flops, 2.0 * 23 * 4 * (8 + 6));
  EXPECT_EQ(cost.bytes_read, 23 * 8 * 2 + 2 * 4 * 8 * 2 + (3 + 2) * 4);
  EXPECT_EQ(cost.bytes_written, 2 * 4 * 6 * 2 + 2 * 4 * 4);

  args.kv_lens.data = nullptr;
  EXPECT_EQ(MlaDecode::cost(args).flops, 2.0 * 2 * (4 * 16) * 4 * (8 + 6));
}

}  // namespace
}  // namespace fathom
