// Sizes at which 32-bit offsets end, and batches times contexts of up to four million keys, against
// the same rows on the CPU. Part of engine_gpu_test.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <span>
#include <vector>

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/attn/kv_write/kv_write.h"
#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"
#include "tests/gpu/large_shapes.h"

namespace fathom {
namespace {

constexpr int64_t kKeyDim = 576;
constexpr int64_t kLatentDim = 512;
constexpr int64_t kHeads = 128;
constexpr float kScale = 0.07f;

// The bound of attention: 1e-3, or two units of bf16 at half a step each.
void expect_close(std::span<const Bf16> found, std::span<const Bf16> expected) {
  ASSERT_EQ(found.size(), expected.size());
  int64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const float e = to_float(expected[i]);
    const float allowed = std::max(2e-3f, 2.0f / 128 * std::abs(e));
    if (!(std::abs(to_float(found[i]) - e) <= allowed)) ++wrong;
  }
  EXPECT_EQ(wrong, 0) << "of " << found.size();
}

// Pages before, on and behind the border; every other page is NaN.
TEST_F(LargeShapes, MlaDecodeReadsPagesBeyondTwoToThe31Elements) {
  for (const int64_t page_size : {64, 16}) {
    SCOPED_TRACE(str_cat("pages of ", page_size));
    const int64_t page_elements = page_size * kKeyDim;
    const int64_t border_page = kBorder / page_elements;
    const int64_t num_pages = border_page + 100;
    const std::vector<int32_t> used = {
        0, static_cast<int32_t>(border_page),     static_cast<int32_t>(num_pages - 1),
        1, static_cast<int32_t>(border_page - 1), static_cast<int32_t>(border_page + 1)};
    const std::vector<int32_t> dense = {0, 1, 2, 3, 4, 5};
    const std::vector<int32_t> kv_lens = {static_cast<int32_t>(3 * page_size),
                                          static_cast<int32_t>(2 * page_size + 5)};
    std::vector<Bf16> q = random_bf16(2 * kHeads * kKeyDim, 1);
    std::vector<Bf16> keys = random_bf16(6 * page_elements, 2);

    buffers_.clear();
    const View cache = on_gpu({num_pages, page_size, kKeyDim}, Format::kBf16, 0xFF);
    for (size_t i = 0; i < used.size(); ++i) {
      send(cache, used[i] * page_elements,
           std::span<const Bf16>(keys).subspan(i * static_cast<size_t>(page_elements),
                                               static_cast<size_t>(page_elements)));
    }
    const View o = on_gpu({2, kHeads, kLatentDim}, Format::kBf16, 0xFF);
    const Status launched = launch<MlaDecode>(on_gpu_, "attn_mqa",
                                              {.q = upload(q, {2, kHeads, kKeyDim}, Format::kBf16),
                                               .cache = cache,
                                               .block_table = upload(used, {2, 3}, Format::kI32),
                                               .kv_lens = upload(kv_lens, {2}, Format::kI32),
                                               .o = o,
                                               .lse = {},
                                               .scale = kScale});
    ASSERT_TRUE(launched.ok()) << launched.message();

    std::vector<Bf16> expected(static_cast<size_t>(2 * kHeads * kLatentDim));
    std::vector<int32_t> table = dense;
    std::vector<int32_t> lens = kv_lens;
    const Status reference =
        launch<MlaDecode>(on_cpu_, "attn_mqa",
                          {.q = host_view(q, {2, kHeads, kKeyDim}, Format::kBf16),
                           .cache = host_view(keys, {6, page_size, kKeyDim}, Format::kBf16),
                           .block_table = host_view(table, {2, 3}, Format::kI32),
                           .kv_lens = host_view(lens, {2}, Format::kI32),
                           .o = host_view(expected, {2, kHeads, kLatentDim}, Format::kBf16),
                           .lse = {},
                           .scale = kScale});
    ASSERT_TRUE(reference.ok()) << reference.message();
    expect_close(fetch<Bf16>(o, 0, 2 * kHeads * kLatentDim), expected);
  }
}

TEST_F(LargeShapes, KeysAreWrittenAndGatheredBeyondTwoToThe31Elements) {
  const int64_t page_elements = 64 * kKeyDim;
  const int64_t border_page = kBorder / page_elements;
  const int64_t num_pages = border_page + 100;
  const int64_t border_slot = kBorder / kKeyDim;  // the border lies within this key
  const std::vector<int64_t> slots = {3, border_slot - 1, border_slot, border_slot + 1,
                                      num_pages * 64 - 1};
  const auto n = static_cast<int64_t>(slots.size());
  const std::vector<Bf16> c = random_bf16(n * kLatentDim, 3);
  const std::vector<Bf16> k_pe = random_bf16(n * 64, 4);
  const View cache = on_gpu({num_pages, 64, kKeyDim}, Format::kBf16, 0xFF);

  const Status written = launch<KvWrite>(on_gpu_, "kv_write",
                                         {.c = upload(c, {n, kLatentDim}, Format::kBf16),
                                          .k_pe = upload(k_pe, {n, 64}, Format::kBf16),
                                          .slots = upload(slots, {n}, Format::kI64),
                                          .cache = cache});
  ASSERT_TRUE(written.ok()) << written.message();
  for (int64_t i = 0; i < n; ++i) {
    SCOPED_TRACE(str_cat("slot ", slots[static_cast<size_t>(i)]));
    const auto key = fetch<Bf16>(cache, slots[static_cast<size_t>(i)] * kKeyDim, kKeyDim);
    EXPECT_EQ(std::memcmp(key.data(), c.data() + i * kLatentDim, kLatentDim * 2), 0);
    EXPECT_EQ(std::memcmp(key.data() + kLatentDim, k_pe.data() + i * 64, 128), 0);
  }
  const auto beside = fetch<uint16_t>(cache, (border_slot + 2) * kKeyDim, kKeyDim);
  EXPECT_EQ(beside, std::vector<uint16_t>(kKeyDim, 0xFFFF));

  const std::vector<int32_t> pages = {static_cast<int32_t>(border_page),
                                      static_cast<int32_t>(num_pages - 1)};
  const View gathered_c = on_gpu({128, kLatentDim}, Format::kBf16, 0);
  const View gathered_k = on_gpu({128, 64}, Format::kBf16, 0);
  const Status gathered = launch<KvGather>(on_gpu_, "kv_gather",
                                           {.cache = cache,
                                            .pages = upload(pages, {2}, Format::kI32),
                                            .c = gathered_c,
                                            .k_pe = gathered_k});
  ASSERT_TRUE(gathered.ok()) << gathered.message();
  const int64_t at = border_slot % 64;
  const auto row = fetch<Bf16>(gathered_c, at * kLatentDim, kLatentDim);
  EXPECT_EQ(std::memcmp(row.data(), c.data() + 2 * kLatentDim, kLatentDim * 2), 0);
  const auto last = fetch<Bf16>(gathered_k, 127 * 64, 64);
  EXPECT_EQ(std::memcmp(last.data(), k_pe.data() + 4 * 64, 128), 0);
}

TEST_F(LargeShapes, NormsOfRowsBeyondTwoToThe31Elements) {
  constexpr int64_t kWidth = 7168;
  const int64_t border_row = kBorder / kWidth;
  const int64_t rows = border_row + 70;
  const std::array<int64_t, 4> looked_at = {0, border_row, border_row + 1, rows - 1};
  std::vector<Bf16> x = random_bf16(4 * kWidth, 5);
  std::vector<Bf16> w = random_bf16(kWidth, 6);
  std::vector<Bf16> expected(x.size());
  const View large = on_gpu({rows, kWidth}, Format::kBf16, 0x3C);
  for (size_t i = 0; i < looked_at.size(); ++i)
    send(large, looked_at[i] * kWidth, std::span<const Bf16>(x).subspan(i * kWidth, kWidth));

  const View y = on_gpu({rows, kWidth}, Format::kBf16, 0xFF);
  const Status launched = launch<RmsNorm>(
      on_gpu_, "norm", {.x = large, .w = upload(w, {kWidth}, Format::kBf16), .y = y});
  ASSERT_TRUE(launched.ok()) << launched.message();
  const Status reference = launch<RmsNorm>(on_cpu_, "norm",
                                           {.x = host_view(x, {4, kWidth}, Format::kBf16),
                                            .w = host_view(w, {kWidth}, Format::kBf16),
                                            .y = host_view(expected, {4, kWidth}, Format::kBf16)});
  ASSERT_TRUE(reference.ok()) << reference.message();

  for (size_t i = 0; i < looked_at.size(); ++i) {
    SCOPED_TRACE(str_cat("row ", looked_at[i]));
    expect_close(fetch<Bf16>(y, looked_at[i] * kWidth, kWidth),
                 std::span<const Bf16>(expected).subspan(i * kWidth, kWidth));
  }
}

// The published kernel of this name ended in an illegal address above 1,024 keys in all.
TEST_F(LargeShapes, MlaDecodeFromAThousandToFourMillionKeys) {
  constexpr int64_t kPages = 64;
  constexpr int64_t kPageSize = 64;
  std::vector<Bf16> keys = random_bf16(kPages * kPageSize * kKeyDim, 7);
  const View cache = upload(keys, {kPages, kPageSize, kKeyDim}, Format::kBf16);

  struct Sweep {
    int64_t batch, keys;
  };

  for (const auto& [batch, len] :
       {Sweep{1, 1024}, Sweep{1, 4096}, Sweep{3, 1025}, Sweep{8, 1024}, Sweep{32, 2048},
        Sweep{128, 4096}, Sweep{1024, 1024}, Sweep{1024, 4096}}) {
    SCOPED_TRACE(str_cat(batch, " x ", len));
    const int64_t width = ceil_div(len, kPageSize);
    std::vector<int32_t> table(static_cast<size_t>(batch * width));
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < width; ++i)
        table[static_cast<size_t>(b * width + i)] = static_cast<int32_t>((5 * i + b) % kPages);
    }
    const std::vector<int32_t> lens(static_cast<size_t>(batch), static_cast<int32_t>(len));
    std::vector<Bf16> q = random_bf16(std::min<int64_t>(batch, 33) * kHeads * kKeyDim, 8);
    q.reserve(static_cast<size_t>(batch * kHeads * kKeyDim));
    for (size_t i = 0; q.size() < static_cast<size_t>(batch * kHeads * kKeyDim); ++i)
      q.push_back(q[i]);
    const View o = on_gpu({batch, kHeads, kLatentDim}, Format::kBf16, 0xFF);
    const Status launched =
        launch<MlaDecode>(on_gpu_, "attn_mqa",
                          {.q = upload(q, {batch, kHeads, kKeyDim}, Format::kBf16),
                           .cache = cache,
                           .block_table = upload(table, {batch, width}, Format::kI32),
                           .kv_lens = upload(lens, {batch}, Format::kI32),
                           .o = o,
                           .lse = {},
                           .scale = kScale});
    ASSERT_TRUE(launched.ok()) << launched.message();

    for (const int64_t b : {int64_t{0}, batch / 2, batch - 1}) {
      SCOPED_TRACE(str_cat("request ", b));
      const auto begin = static_cast<size_t>(b * kHeads * kKeyDim);
      std::vector<Bf16> one(q.begin() + static_cast<int64_t>(begin),
                            q.begin() + static_cast<int64_t>(begin) + kHeads * kKeyDim);
      std::vector<int32_t> pages(table.begin() + b * width, table.begin() + (b + 1) * width);
      std::vector<int32_t> keys_of_one = {static_cast<int32_t>(len)};
      std::vector<Bf16> expected(static_cast<size_t>(kHeads * kLatentDim));
      const Status reference =
          launch<MlaDecode>(on_cpu_, "attn_mqa",
                            {.q = host_view(one, {1, kHeads, kKeyDim}, Format::kBf16),
                             .cache = host_view(keys, {kPages, kPageSize, kKeyDim}, Format::kBf16),
                             .block_table = host_view(pages, {1, width}, Format::kI32),
                             .kv_lens = host_view(keys_of_one, {1}, Format::kI32),
                             .o = host_view(expected, {1, kHeads, kLatentDim}, Format::kBf16),
                             .lse = {},
                             .scale = kScale});
      ASSERT_TRUE(reference.ok()) << reference.message();
      expect_close(fetch<Bf16>(o, b * kHeads * kLatentDim, kHeads * kLatentDim), expected);
    }
  }
}

/// A tree of five rows behind 695 keys. Row 3 sees row 1, row 4 sees rows 0 and 2.
constexpr int32_t kTreeBegin = 695;
constexpr int64_t kTreeRows = 5;
constexpr std::array<int64_t, kTreeRows> kTreeMasks = {0b1, 0b10, 0b101, 0b1010, 0b10101};

class UncutAttention : public LargeShapes, public testing::WithParamInterface<Format> {
 protected:
  /// o of `each` queries for each of `lens` keys; all requests have the same cache.
  std::vector<uint16_t> attend(int64_t heads,
                               const std::vector<uint8_t>& keys,
                               const std::vector<Bf16>& queries,
                               const std::vector<int32_t>& lens,
                               const std::vector<int64_t>& masks = {}) {
    const auto B = static_cast<int64_t>(lens.size());
    const int64_t Q = std::ssize(queries) / (B * heads * kKeyDim);
    const int64_t pages = std::ssize(keys) / (64 * kKeyDim * element_bytes(GetParam()));
    std::vector<int32_t> table(static_cast<size_t>(B * pages));
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<int32_t>(i) % static_cast<int32_t>(pages);
    const View o = on_gpu({B, Q, heads, kLatentDim}, Format::kBf16, 0xFF);
    MlaDecodeMulti::Args args{.q = upload(queries, {B, Q, heads, kKeyDim}, Format::kBf16),
                              .cache = upload(keys, {pages, 64, kKeyDim}, GetParam()),
                              .block_table = upload(table, {B, pages}, Format::kI32),
                              .kv_lens = upload(lens, {B}, Format::kI32),
                              .o = o,
                              .lse = {},
                              .scale = kScale};
    if (!masks.empty()) {
      args.tree_masks = upload(masks, {B, Q}, Format::kI64);
      args.tree_begins = upload(std::vector<int32_t>(lens.size(), kTreeBegin), {B}, Format::kI32);
    }
    const Pins pins = {{"mla_decode_multi", "uncut"}};
    on_gpu_.pins = &pins;
    const Status launched = launch<MlaDecodeMulti>(on_gpu_, "attn_mqa", args);
    EXPECT_TRUE(launched.ok()) << launched.message();
    return fetch<uint16_t>(o, 0, o.numel());
  }
};

template <class T>
std::vector<T> part(const std::vector<T>& all, int64_t at, int64_t each) {
  return {all.begin() + at * each, all.begin() + (at + 1) * each};
}

// Requests beside it, tokens of its chain and the branches of a tree change no bit of a query.
TEST_P(UncutAttention, AQueryHasItsBitsAloneInAChainAndInATree) {
  const int64_t row = kKeyDim * element_bytes(GetParam());
  std::vector<uint8_t> keys(static_cast<size_t>(11 * 64 * row));
  const std::vector<Bf16> values = random_bf16(std::ssize(keys), 12);
  for (size_t i = 0; i < keys.size(); ++i)  // finite in either format
    keys[i] = GetParam() == Format::kE4m3 ? e4m3_from_float(to_float(values[i])).bits
                                          : static_cast<uint8_t>(values[i / 2].bits >> 8 * (i % 2));
  for (const int64_t heads : {128, 16}) {
    SCOPED_TRACE(str_cat(heads, " heads"));
    const int64_t of_query = heads * kKeyDim;
    const int64_t of_result = heads * kLatentDim;
    const std::vector<Bf16> queries = random_bf16(kTreeRows * of_query, 11);
    const auto chain = attend(heads, keys, queries, {700});
    const auto tree = attend(heads, keys, queries, {700}, {kTreeMasks.begin(), kTreeMasks.end()});

    EXPECT_EQ(chain, attend(heads, keys, queries, {696, 697, 698, 699, 700}));
    EXPECT_NE(chain, tree);
    for (int64_t j = 0; j < kTreeRows; ++j) {
      SCOPED_TRACE(str_cat("query ", j));
      const std::vector<Bf16> query = part(queries, j, of_query);
      EXPECT_EQ(part(chain, j, of_result),
                attend(heads, keys, query, {static_cast<int32_t>(kTreeBegin + j + 1)}));
      // The rows of its path, moved to lie behind each other.
      std::vector<uint8_t> moved = keys;
      int32_t end = kTreeBegin;
      for (int64_t i = 0; i < kTreeRows; ++i) {
        if ((kTreeMasks[static_cast<size_t>(j)] >> i & 1) == 0) continue;
        std::copy_n(keys.begin() + (kTreeBegin + i) * row, row, moved.begin() + end++ * row);
      }
      EXPECT_EQ(part(tree, j, of_result), attend(heads, moved, query, {end}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, UncutAttention, testing::Values(Format::kBf16, Format::kE4m3));

}  // namespace
}  // namespace fathom
