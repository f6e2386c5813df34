// Kernels of DeepSeek-V3.2 and V4 that write rows of caches and of grouped products, where offsets
// pass 2^31: against the CPU on the same rows, or in double. What nobody writes stays NaN. Part of
// engine_gpu_test; operands take 18 GB at most.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "fathom/kernels/attn/mla_sparse_kv_write/mla_sparse_kv_write.h"
#include "fathom/kernels/compress/kv_compress/kv_compress.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"
#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write.h"
#include "fathom/kernels/sparse/index_prepare/index_prepare.h"
#include "tests/gpu/large_shapes.h"

namespace fathom {
namespace {

using LargeWrites = LargeShapes;

constexpr int64_t kPage = 64;
constexpr int64_t kRope = 64;

/// Cosines and sines of `rows` positions.
std::vector<float> rope_table(int64_t rows) {
  std::vector<float> out;
  for (int64_t p = 0; p < rows; ++p) {
    for (int64_t i = 0; i < kRope; ++i) {
      const double angle = static_cast<double>(p) / std::pow(1e4, double(i % (kRope / 2)) / 32);
      out.push_back(static_cast<float>(i < kRope / 2 ? std::cos(angle) : std::sin(angle)));
    }
  }
  return out;
}

/// Pages that hold a row more than `border` and some behind.
int64_t pages_beyond(int64_t border) {
  return border / kPage + 4;
}

/// Two steps of bf16, or `abs`.
void expect_near(const std::vector<Bf16>& found, std::span<const Bf16> expected, float abs) {
  ASSERT_EQ(found.size(), expected.size());
  int64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const float e = to_float(expected[i]);
    if (!(std::abs(to_float(found[i]) - e) <= std::max(abs, std::abs(e) / 64))) ++wrong;
  }
  EXPECT_EQ(wrong, 0) << "of " << found.size();
}

template <class T>
std::vector<T> part(const std::vector<T>& all, int64_t at, int64_t count) {
  return {all.begin() + at, all.begin() + at + count};
}

TEST_F(LargeWrites, AMillionLatentRowsBehindTwoToThe31Bytes) {
  constexpr int64_t kRow = 656, kWidth = 512, kTokens = int64_t{1} << 20, kSkipped = 7;
  const int64_t first = kBorder / kRow - kTokens / 2;  // slot of token 0
  const View cache = on_gpu({pages_beyond(first + kTokens), kPage, kRow}, Format::kU8, kNanByte);
  const View c = on_gpu({kTokens, kWidth}, Format::kBf16, kSmallByte);
  const View k_pe = on_gpu({kTokens, kRope}, Format::kBf16, kSmallByte);
  std::vector<int64_t> slots(static_cast<size_t>(kTokens));
  for (int64_t t = 0; t < kTokens; ++t)
    slots[static_cast<size_t>(t)] = t == kSkipped ? -1 : first + t;
  const std::vector<int64_t> looked_at = {0, kTokens / 2 - 1, kTokens / 2, kTokens / 2 + 1,
                                          kTokens - 1};
  const auto n = std::ssize(looked_at);
  std::vector<Bf16> few_c = random_bf16(n * kWidth, 1);
  std::vector<Bf16> few_k = random_bf16(n * kRope, 2);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t = looked_at[static_cast<size_t>(i)];
    send(c, t * kWidth, std::span<const Bf16>(few_c).subspan(static_cast<size_t>(i * kWidth), 512));
    send(k_pe, t * kRope, std::span<const Bf16>(few_k).subspan(static_cast<size_t>(i * kRope), 64));
  }
  const auto args = [&](const View& latent, const View& rope, const View& at, const View& rows) {
    return MlaSparseKvWrite::Args{.c = latent,
                                  .k_pe = rope,
                                  .slots = at,
                                  .values = field(rows, 0, kWidth, Format::kE4m3),
                                  .rope = field(rows, kWidth + 16, kRope, Format::kBf16),
                                  .scales = field(rows, kWidth, 4, Format::kF32)};
  };
  const Status launched = launch<MlaSparseKvWrite>(
      on_gpu_, "kv_write", args(c, k_pe, upload(slots, {kTokens}, Format::kI64), cache));
  ASSERT_TRUE(launched.ok()) << launched.message();

  std::vector<uint8_t> expected(static_cast<size_t>(n * kRow), 0);
  std::vector<int64_t> dense = {0, 1, 2, 3, 4};
  const Status reference = launch<MlaSparseKvWrite>(
      on_cpu_, "kv_write",
      args(host_view(few_c, {n, kWidth}, Format::kBf16),
           host_view(few_k, {n, kRope}, Format::kBf16), host_view(dense, {n}, Format::kI64),
           host_view(expected, {1, n, kRow}, Format::kU8)));
  ASSERT_TRUE(reference.ok()) << reference.message();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t slot = first + looked_at[static_cast<size_t>(i)];
    EXPECT_EQ(fetch<uint8_t>(cache, slot * kRow, kRow), part(expected, i * kRow, kRow)) << slot;
  }
  for (const int64_t slot : {first - 1, first + kSkipped, first + kTokens})
    EXPECT_EQ(fetch<uint8_t>(cache, slot * kRow, kRow), std::vector<uint8_t>(kRow, 0xFF)) << slot;
}

TEST_F(LargeWrites, QueriesAndWindowRowsBeyondTwoToThe31) {
  constexpr int64_t kHeads = 64, kDim = 512, kPositions = 1000;
  const int64_t border = kBorder / (kHeads * kDim);
  const int64_t tokens = border + 70;
  const int64_t first = kBorder / kDim - tokens / 2;  // slot of token 0
  const View q = on_gpu({tokens, kHeads, kDim}, Format::kBf16, kSmallByte);
  const View q_out = on_gpu({tokens, kHeads, kDim}, Format::kBf16, kNanByte);
  const View kv = on_gpu({tokens, kDim}, Format::kBf16, kSmallByte);
  const View cache = on_gpu({pages_beyond(first + tokens), kPage, kDim}, Format::kBf16, kNanByte);
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    slots[static_cast<size_t>(t)] = first + t;
    positions[static_cast<size_t>(t)] = static_cast<int32_t>(t % kPositions);
  }
  const std::vector<int64_t> looked_at = {0,      tokens / 2, border - 1,
                                          border, border + 1, tokens - 1};
  const auto n = std::ssize(looked_at);
  std::vector<Bf16> few_q = random_bf16(n * kHeads * kDim, 3);
  std::vector<Bf16> few_kv = random_bf16(n * kDim, 4);
  std::vector<Bf16> norm = random_bf16(kDim, 5);
  std::vector<float> table = rope_table(kPositions);
  std::vector<int32_t> few_positions;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t = looked_at[static_cast<size_t>(i)];
    few_positions.push_back(positions[static_cast<size_t>(t)]);
    send(q, t * kHeads * kDim,
         std::span<const Bf16>(few_q).subspan(static_cast<size_t>(i * kHeads * kDim),
                                              kHeads * kDim));
    send(kv, t * kDim, std::span<const Bf16>(few_kv).subspan(static_cast<size_t>(i * kDim), kDim));
  }
  const Status launched =
      launch<QnormRopeKvWrite>(on_gpu_, "qnorm_rope_kv_write",
                               {.q = q,
                                .kv = kv,
                                .kv_norm = upload(norm, {kDim}, Format::kBf16),
                                .positions = upload(positions, {tokens}, Format::kI32),
                                .table = upload(table, {kPositions, kRope}, Format::kF32),
                                .slots = upload(slots, {tokens}, Format::kI64),
                                .q_out = q_out,
                                .values = cache});
  ASSERT_TRUE(launched.ok()) << launched.message();

  std::vector<Bf16> expected_q(few_q.size());
  std::vector<Bf16> expected_rows(few_kv.size());
  std::vector<int64_t> dense = {0, 1, 2, 3, 4, 5};
  const Status reference =
      launch<QnormRopeKvWrite>(on_cpu_, "qnorm_rope_kv_write",
                               {.q = host_view(few_q, {n, kHeads, kDim}, Format::kBf16),
                                .kv = host_view(few_kv, {n, kDim}, Format::kBf16),
                                .kv_norm = host_view(norm, {kDim}, Format::kBf16),
                                .positions = host_view(few_positions, {n}, Format::kI32),
                                .table = host_view(table, {kPositions, kRope}, Format::kF32),
                                .slots = host_view(dense, {n}, Format::kI64),
                                .q_out = host_view(expected_q, {n, kHeads, kDim}, Format::kBf16),
                                .values = host_view(expected_rows, {1, n, kDim}, Format::kBf16)});
  ASSERT_TRUE(reference.ok()) << reference.message();
  constexpr int64_t kQuery = kHeads * kDim;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t = looked_at[static_cast<size_t>(i)];
    SCOPED_TRACE(str_cat("token ", t));
    expect_near(fetch<Bf16>(q_out, t * kQuery, kQuery), part(expected_q, i * kQuery, kQuery),
                1e-3f);
    expect_near(fetch<Bf16>(cache, (first + t) * kDim, kDim), part(expected_rows, i * kDim, kDim),
                1e-3f);
  }
  for (const int64_t slot : {first - 1, first + tokens}) {
    EXPECT_EQ(fetch<uint16_t>(cache, slot * kDim, kDim), std::vector<uint16_t>(kDim, 0xFFFF));
  }
}

// Five blocks of four tokens, each pooled with the four before it.
TEST_F(LargeWrites, CompressedRowsBeyondTwoToThe31) {
  constexpr int64_t kDim = 512, kWidth = 1024, kRows = 5, kTokens = 24, kEntries = 8;
  const int64_t border = kBorder / kDim;
  const View cache = on_gpu({pages_beyond(border), kPage, kDim}, Format::kBf16, kNanByte);
  std::vector<int64_t> slots = {0, border - 1, border, border + 1, cache.dim(0) * kPage - 1};
  std::vector<float> u_z = random_f32(kTokens * 2 * kWidth, 6);
  std::vector<float> state = random_f32(kEntries * kWidth, 7);  // which no entry is in
  std::vector<float> ape = random_f32(4 * kWidth, 8);
  std::vector<float> norm(static_cast<size_t>(kDim), 1.0f);
  std::vector<float> table = rope_table(kTokens);
  std::vector<int64_t> gather;
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < kRows; ++i) {
    positions.push_back(static_cast<int32_t>(4 * i));
    for (int64_t e = 0; e < kEntries; ++e)
      gather.push_back(4 * i + e);
  }
  const auto args = [&](const auto& view, const View& values, std::vector<int64_t>& at) {
    return CompressPool::Args{.u_z = view(u_z, {kTokens, 2 * kWidth}, Format::kF32),
                              .state_u = view(state, {1, kEntries, kWidth}, Format::kF32),
                              .state_z = view(state, {1, kEntries, kWidth}, Format::kF32),
                              .ape = view(ape, {4, kWidth}, Format::kF32),
                              .gather = view(gather, {kRows, kEntries}, Format::kI64),
                              .positions = view(positions, {kRows}, Format::kI32),
                              .norm = view(norm, {kDim}, Format::kF32),
                              .table = view(table, {kTokens, kRope}, Format::kF32),
                              .slots = view(at, {kRows}, Format::kI64),
                              .values = values};
  };
  using Dims = std::initializer_list<int64_t>;
  const auto there = [&](auto& x, Dims dims, Format format) { return upload(x, dims, format); };
  const auto here = [](auto& x, Dims dims, Format format) { return host_view(x, dims, format); };
  const Status launched = launch<CompressPool>(on_gpu_, "compress", args(there, cache, slots));
  ASSERT_TRUE(launched.ok()) << launched.message();
  std::vector<Bf16> expected(static_cast<size_t>(kRows * kDim));
  std::vector<int64_t> dense = {0, 1, 2, 3, 4};
  const View rows = host_view(expected, {1, kRows, kDim}, Format::kBf16);
  const Status reference = launch<CompressPool>(on_cpu_, "compress", args(here, rows, dense));
  ASSERT_TRUE(reference.ok()) << reference.message();
  for (int64_t i = 0; i < kRows; ++i) {
    SCOPED_TRACE(str_cat("row ", i));
    expect_near(fetch<Bf16>(cache, slots[static_cast<size_t>(i)] * kDim, kDim),
                part(expected, i * kDim, kDim), 0x1p-6f);
  }
  EXPECT_EQ(fetch<uint16_t>(cache, (border + 2) * kDim, kDim), std::vector<uint16_t>(kDim, 0xFFFF));
}

TEST_F(LargeWrites, StatesOfCompressorsBeyondTwoToThe31) {
  constexpr int64_t kWidth = 1024, kRing = 8, kTokens = 5;
  const int64_t border = kBorder / kWidth;
  const int64_t sequences = border / kRing + 4;
  const View state_u = on_gpu({sequences, kRing, kWidth}, Format::kF32, kNanByte);
  const View state_z = on_gpu({sequences, kRing, kWidth}, Format::kF32, kNanByte);
  const std::vector<int64_t> slots = {0, border - 1, border, border + 1, sequences * kRing - 1};
  const std::vector<int32_t> positions = {0, 1, 2, 3, 1000003};
  const std::vector<float> u_z = random_f32(kTokens * 2 * kWidth, 9);
  const std::vector<float> ape = random_f32(4 * kWidth, 10);
  const Status launched =
      launch<CompressStateWrite>(on_gpu_, "compress_state",
                                 {.u_z = upload(u_z, {kTokens, 2 * kWidth}, Format::kF32),
                                  .ape = upload(ape, {4, kWidth}, Format::kF32),
                                  .positions = upload(positions, {kTokens}, Format::kI32),
                                  .slots = upload(slots, {kTokens}, Format::kI64),
                                  .state_u = state_u,
                                  .state_z = state_z});
  ASSERT_TRUE(launched.ok()) << launched.message();
  for (int64_t t = 0; t < kTokens; ++t) {
    SCOPED_TRACE(str_cat("token ", t));
    const int64_t slot = slots[static_cast<size_t>(t)];
    EXPECT_EQ(fetch<float>(state_u, slot * kWidth, kWidth), part(u_z, 2 * t * kWidth, kWidth));
    std::vector<float> z = part(u_z, (2 * t + 1) * kWidth, kWidth);
    for (size_t i = 0; i < z.size(); ++i)
      z[i] += ape[static_cast<size_t>(positions[static_cast<size_t>(t)] % 4 * kWidth) + i];
    EXPECT_EQ(fetch<float>(state_z, slot * kWidth, kWidth), z);
  }
}

TEST_F(LargeWrites, KeysOfIndexersBeyondTwoToThe31) {
  constexpr int64_t kDim = 128, kTokens = 5;
  const int64_t border = kBorder / kDim;
  const View cache = on_gpu({pages_beyond(border), kPage, kDim}, Format::kE4m3, kNanByte);
  const View cache_scales = on_gpu({cache.dim(0), kPage, 1}, Format::kF32, kNanByte);
  std::vector<int64_t> slots = {0, border - 1, border, border + 1, cache.dim(0) * kPage - 1};
  std::vector<int64_t> dense = {0, 1, 2, 3, 4};
  std::vector<Bf16> k = random_bf16(kTokens * kDim, 11);
  std::vector<float> norm_w(static_cast<size_t>(kDim), 1.0f);
  std::vector<float> norm_b(static_cast<size_t>(kDim), 0.1f);
  std::vector<int32_t> positions = {0, 5, 17, 18, 99};
  std::vector<float> table = rope_table(100);
  const auto args = [&](const auto& view, std::vector<int64_t>& at, View values, View scales) {
    return IndexKeyWrite::Args{.k = view(k, {kTokens, kDim}, Format::kBf16),
                               .norm_w = view(norm_w, {kDim}, Format::kF32),
                               .norm_b = view(norm_b, {kDim}, Format::kF32),
                               .positions = view(positions, {kTokens}, Format::kI32),
                               .table = view(table, {100, kRope}, Format::kF32),
                               .slots = view(at, {kTokens}, Format::kI64),
                               .values = values,
                               .scales = scales};
  };
  using Dims = std::initializer_list<int64_t>;
  const auto there = [&](auto& x, Dims dims, Format format) { return upload(x, dims, format); };
  const auto here = [](auto& x, Dims dims, Format format) { return host_view(x, dims, format); };
  const Status launched =
      launch<IndexKeyWrite>(on_gpu_, "index_key", args(there, slots, cache, cache_scales));
  ASSERT_TRUE(launched.ok()) << launched.message();
  std::vector<uint8_t> codes(static_cast<size_t>(kTokens * kDim));
  std::vector<float> scales(static_cast<size_t>(kTokens));
  const Status reference =
      launch<IndexKeyWrite>(on_cpu_, "index_key",
                            args(here, dense, host_view(codes, {1, kTokens, kDim}, Format::kE4m3),
                                 host_view(scales, {1, kTokens, 1}, Format::kF32)));
  ASSERT_TRUE(reference.ok()) << reference.message();
  for (int64_t t = 0; t < kTokens; ++t) {
    SCOPED_TRACE(str_cat("token ", t));
    const int64_t slot = slots[static_cast<size_t>(t)];
    const float scale = fetch<float>(cache_scales, slot, 1)[0];
    const float right_scale = scales[static_cast<size_t>(t)];
    const std::vector<uint8_t> found = fetch<uint8_t>(cache, slot * kDim, kDim);
    int64_t wrong = 0;
    for (size_t d = 0; d < found.size(); ++d) {
      const float e = to_float(E4m3{codes[static_cast<size_t>(t * kDim) + d]}) * right_scale;
      // A step of a code: sums of a norm in another order may end beside a border.
      const float allowed = std::abs(e) / 8 + right_scale * 0x1p-8f;
      if (!(std::abs(to_float(E4m3{found[d]}) * scale - e) <= allowed)) ++wrong;
    }
    EXPECT_EQ(wrong, 0);
  }
  EXPECT_EQ(fetch<uint8_t>(cache, (border + 2) * kDim, kDim), std::vector<uint8_t>(kDim, 0xFF));
}

// The weights of experts without tokens are NaN, and rows of no expert stay as they are.
TEST_F(LargeWrites, GroupedProductsBeyondTwoToThe31) {
  constexpr int64_t kExperts = 8, kN = 7168, kK = 2048;
  const int64_t border = kBorder / kN;
  const int64_t rows = border + 100;
  const int64_t end = border + 50;
  const std::vector<int32_t> offsets = {0,
                                        100000,
                                        100000,
                                        100000,
                                        100000,
                                        static_cast<int32_t>(border - 500),
                                        static_cast<int32_t>(border - 500),
                                        static_cast<int32_t>(border - 500),
                                        static_cast<int32_t>(end)};
  const View w = on_gpu({kExperts, kN, kK}, Format::kE4m3, kNanByte);
  const std::vector<int64_t> columns = {0, 127, 128, kN - 1};
  std::vector<std::vector<uint8_t>> codes;  // of expert e, column c: e * 4 + c
  for (int64_t e = 0; e < kExperts; ++e) {
    const bool has_rows = offsets[static_cast<size_t>(e)] < offsets[static_cast<size_t>(e) + 1];
    auto* of_expert = static_cast<std::byte*>(w.data) + e * kN * kK;
    if (has_rows) {
      EXPECT_TRUE(gpu_->stream().fill(of_expert, 0x38, kN * kK).ok());  // 1
      EXPECT_TRUE(gpu_->stream().synchronize().ok());
    }
    for (const int64_t n : columns) {
      codes.push_back(random_e4m3(kK, static_cast<uint64_t>(1000 * e + n)));
      if (has_rows) send(w, (e * kN + n) * kK, std::span<const uint8_t>(codes.back()));
    }
  }
  std::vector<float> scales;
  for (int64_t i = 0; i < kExperts * (kN / 128) * (kK / 128); ++i)
    scales.push_back(0.0001f * static_cast<float>(i % 7 + 1));
  QuantView weights;
  weights.values = w;
  weights.values.format = Format::kFp8Block;
  weights.scales = upload(scales, {kExperts, kN / 128, kK / 128}, Format::kF32);
  const View x = on_gpu({rows, kK}, Format::kBf16, kSmallByte);
  const View y = on_gpu({rows, kN}, Format::kBf16, kNanByte);
  const std::vector<int64_t> looked_at = {0,      99999,      100000, border - 1,
                                          border, border + 1, end - 1};
  const std::vector<Bf16> few = random_bf16(kK, 12);
  for (const int64_t r : looked_at)
    send(x, r * kK, std::span<const Bf16>(few));
  const Status launched = launch<Fp8GroupGemm>(
      on_gpu_, "gate_up_proj",
      {.x = x, .w = weights, .offsets = upload(offsets, {kExperts + 1}, Format::kI32), .y = y});
  ASSERT_TRUE(launched.ok()) << launched.message();
  for (const int64_t r : looked_at) {
    const int64_t e = r < 100000 ? 0 : r < border - 500 ? 4 : 7;
    const std::vector<Bf16> found = fetch<Bf16>(y, r * kN, kN);
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::vector<uint8_t>& column = codes[static_cast<size_t>(e) * columns.size() + c];
      double exact = 0;
      double size = 0;
      for (int64_t k = 0; k < kK; ++k) {
        const int64_t block = (e * (kN / 128) + columns[c] / 128) * (kK / 128) + k / 128;
        const double product = double{to_float(few[static_cast<size_t>(k)])} *
                               to_float(E4m3{column[static_cast<size_t>(k)]}) *
                               double{scales[static_cast<size_t>(block)]};
        exact += product;
        size += product * product;
      }
      EXPECT_NEAR(to_float(found[static_cast<size_t>(columns[c])]), exact, 0.01 * std::sqrt(size))
          << "row " << r << ", column " << columns[c];
    }
  }
  for (const int64_t r : {end, rows - 1})
    EXPECT_EQ(fetch<uint16_t>(y, r * kN, kN), std::vector<uint16_t>(kN, 0xFFFF)) << "row " << r;
}

}  // namespace
}  // namespace fathom
