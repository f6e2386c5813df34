// Kernels of DeepSeek-V3.2 and V4 where offsets pass 2^31, with rows of up to a million scores.
// What no list, table or offset names is NaN. References are in double, on few rows. Part of
// engine_gpu_test; operands take 18 GB at most.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/sparse_mla/sparse_mla.h"
#include "fathom/kernels/sparse/index_logits/index_logits.h"
#include "fathom/kernels/sparse/topk_rows/topk_rows.h"
#include "tests/gpu/large_shapes.h"

namespace fathom {
namespace {

using LargeSparse = LargeShapes;

constexpr int64_t kPage = 64;
constexpr int64_t kMillion = int64_t{1} << 20;

/// Rows of which lists are made: both ends, those around `borders`, and others.
std::vector<int64_t> live_rows(int64_t rows, std::initializer_list<int64_t> borders) {
  std::vector<int64_t> out = {0, 1, rows - 1};
  for (const int64_t border : borders)
    out.insert(out.end(), {border - 1, border, border + 1});
  Rng rng(5);
  while (out.size() < 300)
    out.push_back(rng.next_below(static_cast<uint32_t>(rows)));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

/// Attention of each head of a token over `keys`, in double.
void expect_attention(const std::vector<Bf16>& q,
                      const std::vector<std::vector<double>>& keys,
                      int64_t width,
                      float scale,
                      const std::vector<Bf16>& found) {
  const int64_t heads = std::ssize(found) / width;
  const int64_t channels = std::ssize(q) / heads;
  const auto key = [&](int64_t j) -> std::vector<double> { return keys[static_cast<size_t>(j)]; };
  int64_t wrong = 0;
  for (int64_t n = 0; n < heads; ++n) {
    std::vector<double> query;
    for (int64_t d = 0; d < channels; ++d)
      query.push_back(to_float(q[static_cast<size_t>(n * channels + d)]));
    const auto exact = oracle::attend(query, std::ssize(keys), width, double{scale}, key, key);
    for (int64_t d = 0; d < width; ++d) {
      const double e = exact.o[static_cast<size_t>(d)];
      const double x = to_float(found[static_cast<size_t>(n * width + d)]);
      if (!(std::abs(x - e) <= std::max(1e-3, 2.0 / 128 * std::abs(e)))) ++wrong;
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << found.size();
}

TEST_F(LargeSparse, DecodeReadsRowsBeyondTwoToThe31Bytes) {
  constexpr int64_t kRow = 656, kHeads = 16, kDim = 576, kWidth = 512, kK = 2048;
  const int64_t pages = kBorder / kWidth / kPage + 10;
  const View cache = on_gpu({pages, kPage, kRow}, Format::kU8, kNanByte);
  // The borders of bytes and of elements.
  const std::vector<int64_t> live = live_rows(pages * kPage, {kBorder / kRow, kBorder / kWidth});
  std::vector<std::vector<double>> values;
  for (size_t i = 0; i < live.size(); ++i) {
    std::vector<uint8_t> row = random_e4m3(kWidth, 100 + i);
    const std::vector<float> scales = {0.01f, 0.02f, 0.005f, 0.01f};
    const std::vector<Bf16> rope = random_bf16(kDim - kWidth, 500 + i);
    std::vector<double> x;
    for (size_t d = 0; d < row.size(); ++d)
      x.push_back(to_float(bf16_from_float(to_float(E4m3{row[d]}) * scales[d / 128])));
    for (const Bf16 r : rope)
      x.push_back(to_float(r));
    values.push_back(std::move(x));
    row.resize(kRow);
    std::memcpy(row.data() + kWidth, scales.data(), 16);
    std::memcpy(row.data() + kWidth + 16, rope.data(), 128);
    send(cache, live[i] * kRow, std::span<const uint8_t>(row));
  }
  // A long list with gaps, no row at all, and the last row at the end of its list.
  std::vector<int32_t> slots(3 * kK, -1);
  std::vector<std::vector<double>> first;
  for (int64_t j = 0; j < kK; ++j) {
    if (j % 5 == 3) continue;
    const size_t i = static_cast<size_t>(j * 7) % live.size();
    slots[static_cast<size_t>(j)] = static_cast<int32_t>(live[i]);
    first.push_back(values[i]);
  }
  slots.back() = static_cast<int32_t>(live.back());

  const std::vector<Bf16> q = random_bf16(3 * kHeads * kDim, 1);
  const View o = on_gpu({3, kHeads, kWidth}, Format::kBf16, kNanByte);
  constexpr float kScale = 0.05f;
  const Status launched =
      launch<SparseMlaDecode>(on_gpu_, "attn_sparse",
                              {.q = upload(q, {3, kHeads, kDim}, Format::kBf16),
                               .rows = {.values = field(cache, 0, kWidth, Format::kE4m3),
                                        .slots = upload(slots, {3, kK}, Format::kI32),
                                        .rope = field(cache, kWidth + 16, 64, Format::kBf16),
                                        .scales = field(cache, kWidth, 4, Format::kF32)},
                               .o = o,
                               .scale = kScale});
  ASSERT_TRUE(launched.ok()) << launched.message();
  for (int64_t t = 0; t < 3; ++t) {
    SCOPED_TRACE(str_cat("token ", t));
    const std::vector<Bf16> query(q.begin() + t * kHeads * kDim,
                                  q.begin() + (t + 1) * kHeads * kDim);
    std::vector<std::vector<double>> keys;
    if (t == 0) keys = first;
    if (t == 2) keys = {values.back()};
    expect_attention(query, keys, kWidth, kScale,
                     fetch<Bf16>(o, t * kHeads * kWidth, kHeads * kWidth));
  }
}

TEST_F(LargeSparse, PrefillHasMoreThanTwoToThe31QueriesAndKeys) {
  constexpr int64_t kHeads = 64, kDim = 512, kK = 64;
  const int64_t border = kBorder / (kHeads * kDim);
  const int64_t tokens = border + 70;
  const int64_t rows = kBorder / kDim + 100;
  const View kv = on_gpu({rows, kDim}, Format::kBf16, kNanByte);
  const std::vector<int64_t> live = live_rows(rows, {kBorder / kDim});
  std::vector<std::vector<double>> values;
  for (size_t i = 0; i < live.size(); ++i) {
    const std::vector<Bf16> row = random_bf16(kDim, 100 + i);
    send(kv, live[i] * kDim, std::span<const Bf16>(row));
    values.emplace_back();
    for (const Bf16 x : row)
      values.back().push_back(to_float(x));
  }
  // Every third token has half of a list, and one has none.
  constexpr int64_t kAlone = 5;
  const auto entry = [&](int64_t t, int64_t j) -> int64_t {
    if (t == kAlone || (t % 3 == 1 && j % 2 == 1)) return -1;
    return (t * 13 + j * 7) % std::ssize(live);
  };
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < kK; ++j) {
      const int64_t i = entry(t, j);
      ids.push_back(i < 0 ? -1 : static_cast<int32_t>(live[static_cast<size_t>(i)]));
    }
  }
  const View q = on_gpu({tokens, kHeads, kDim}, Format::kBf16, kSmallByte);
  const View o = on_gpu({tokens, kHeads, kDim}, Format::kBf16, kNanByte);
  const std::vector<int64_t> looked_at = {0, kAlone, border - 1, border, border + 1, tokens - 1};
  const std::vector<Bf16> queries = random_bf16(kHeads * kDim, 2);
  for (const int64_t t : looked_at)
    send(q, t * kHeads * kDim, std::span<const Bf16>(queries));
  constexpr float kScale = 0.06f;
  const Status launched = launch<SparseMlaPrefill>(
      on_gpu_, "attn_sparse",
      {.q = q, .kv = kv, .ids = upload(ids, {tokens, kK}, Format::kI32), .o = o, .scale = kScale});
  ASSERT_TRUE(launched.ok()) << launched.message();
  for (const int64_t t : looked_at) {
    SCOPED_TRACE(str_cat("token ", t));
    std::vector<std::vector<double>> keys;
    for (int64_t j = 0; j < kK; ++j) {
      if (entry(t, j) >= 0) keys.push_back(values[static_cast<size_t>(entry(t, j))]);
    }
    expect_attention(queries, keys, kDim, kScale, fetch<Bf16>(o, t * kHeads * kDim, kHeads * kDim));
  }
}

// ---- scores and their largest ----

/// Positions of the k largest by totalOrder, ascending; of equal ones the first.
std::vector<int32_t> largest(std::span<const float> scores, int64_t k) {
  std::vector<int32_t> at(scores.size());
  std::iota(at.begin(), at.end(), 0);
  if (std::ssize(scores) > k) {
    const auto order = [&](int32_t i) {
      int32_t bits = 0;
      std::memcpy(&bits, &scores[static_cast<size_t>(i)], 4);
      return bits ^ (bits >> 31 & 0x7FFFFFFF);
    };
    std::nth_element(at.begin(), at.begin() + k - 1, at.end(), [&](int32_t a, int32_t b) {
      return order(a) != order(b) ? order(a) > order(b) : a < b;
    });
    at.resize(static_cast<size_t>(k));
    std::sort(at.begin(), at.end());
  }
  at.resize(static_cast<size_t>(k), -1);
  return at;
}

constexpr int64_t kTop = 2048;

TEST_F(LargeSparse, TopkOfRowsFromOneToAMillionScores) {
  std::vector<float> all = random_f32(kMillion + 8 * 977, 3);
  for (float& x : all)
    x = std::round(x * 1024) / 1024;  // many are equal
  for (const int64_t length :
       {int64_t{1}, kTop - 1, kTop, kTop + 1, int64_t{8192}, int64_t{8193}, int64_t{65536},
        int64_t{131072}, int64_t{131073}, int64_t{262144}, int64_t{1000003}, kMillion}) {
    for (const int64_t batch : {1, 8}) {
      SCOPED_TRACE(str_cat(batch, " x ", length));
      buffers_.clear();
      const View scores = on_gpu({batch, length}, Format::kF32, 0);
      const auto row = [&](int64_t b) {
        return std::span<const float>(all).subspan(static_cast<size_t>(b * 977),
                                                   static_cast<size_t>(length));
      };
      for (int64_t b = 0; b < batch; ++b)
        send(scores, b * length, row(b));
      const std::vector<int32_t> lengths(static_cast<size_t>(batch), static_cast<int32_t>(length));
      const View ids = on_gpu({batch, kTop}, Format::kI32, kSmallByte);
      const Status launched = launch<TopkRows>(
          on_gpu_, "index_topk",
          {.scores = scores, .lengths = upload(lengths, {batch}, Format::kI32), .ids = ids});
      ASSERT_TRUE(launched.ok()) << launched.message();
      for (const int64_t b : {int64_t{0}, batch - 1})
        EXPECT_EQ(fetch<int32_t>(ids, b * kTop, kTop), largest(row(b), kTop));
    }
  }
}

// Most rows hold one number again and again; what is behind the end of a row is the largest NaN.
TEST_F(LargeSparse, TopkOfMoreThanTwoToThe31Scores) {
  const int64_t border = kBorder / kMillion;
  const int64_t batch = border + 50;
  const View scores = on_gpu({batch, kMillion}, Format::kF32, kSmallByte);
  std::vector<int32_t> lengths(static_cast<size_t>(batch), static_cast<int32_t>(kMillion));
  std::vector<float> equal(static_cast<size_t>(kMillion));
  std::memset(equal.data(), kSmallByte, equal.size() * 4);
  std::vector<std::pair<int64_t, std::vector<float>>> looked_at = {{1000, equal}};
  for (const int64_t b : {int64_t{0}, border - 1, border, batch - 1}) {
    looked_at.emplace_back(b, random_f32(kMillion, 20 + static_cast<uint64_t>(b)));
    send(scores, b * kMillion, std::span<const float>(looked_at.back().second));
  }
  for (const int64_t length : {int64_t{0}, kTop, kTop + 1, int64_t{8192}, int64_t{300000}}) {
    const int64_t b = border + 1 + std::ssize(looked_at);
    std::vector<float> row = random_f32(length, 40);
    lengths[static_cast<size_t>(b)] = static_cast<int32_t>(length);
    looked_at.emplace_back(b, row);
    row.resize(static_cast<size_t>(kMillion), std::nanf(""));
    send(scores, b * kMillion, std::span<const float>(row));
  }
  const View ids = on_gpu({batch, kTop}, Format::kI32, kSmallByte);
  const Status launched = launch<TopkRows>(
      on_gpu_, "index_topk",
      {.scores = scores, .lengths = upload(lengths, {batch}, Format::kI32), .ids = ids});
  ASSERT_TRUE(launched.ok()) << launched.message();
  for (const auto& [b, row] : looked_at)
    EXPECT_EQ(fetch<int32_t>(ids, b * kTop, kTop), largest(row, kTop)) << "row " << b;
}

TEST_F(LargeSparse, LogitsBeyondTwoToThe31OfKeysBeyondTwoToThe31) {
  constexpr int64_t kHeads = 64, kDim = 128, kLive = 64, kRequests = 3, kEach = 696;
  const int64_t border = kBorder / kMillion;
  const int64_t tokens = border + 50;  // the last ones are of no request
  const int64_t pages = kBorder / (kPage * kDim) + 6;
  const View keys = on_gpu({pages, kPage, kDim}, Format::kE4m3, kNanByte);
  const View key_scales = on_gpu({pages, kPage, 1}, Format::kF32, kNanByte);
  std::vector<int64_t> live = {0, pages - 7, pages - 6, pages - 5, pages - 1};
  for (int64_t i = 1; std::ssize(live) < kLive; ++i)
    live.push_back(i * 4001);
  const std::vector<uint8_t> codes = random_e4m3(kLive * kPage * kDim, 6);
  std::vector<float> scales = random_f32(kLive * kPage, 7);
  for (float& s : scales)
    s = 0.01f + 0.001f * std::abs(s);
  for (int64_t i = 0; i < kLive; ++i) {
    send(keys, live[static_cast<size_t>(i)] * kPage * kDim,
         std::span<const uint8_t>(codes).subspan(static_cast<size_t>(i * kPage * kDim),
                                                 kPage * kDim));
    send(key_scales, live[static_cast<size_t>(i)] * kPage,
         std::span<const float>(scales).subspan(static_cast<size_t>(i * kPage), kPage));
  }
  const int64_t width = kMillion / kPage;
  const auto entry = [](int64_t r, int64_t i) { return (i * 7 + r * 11 + i / kLive) % kLive; };
  std::vector<int32_t> table;
  for (int64_t r = 0; r < kRequests; ++r) {
    for (int64_t i = 0; i < width; ++i)
      table.push_back(static_cast<int32_t>(live[static_cast<size_t>(entry(r, i))]));
  }
  std::vector<int32_t> offsets = {0, kEach, 2 * kEach, 3 * kEach};
  std::vector<int32_t> lengths(static_cast<size_t>(tokens), static_cast<int32_t>(kMillion));
  std::fill(lengths.begin() + kRequests * kEach, lengths.end(), 0);
  lengths[5] = 0;
  lengths[6] = 1;
  lengths[7] = 500001;
  const std::vector<uint8_t> q = random_e4m3(tokens * kHeads * kDim, 8);
  std::vector<float> w = random_f32(tokens * kHeads, 9);
  const View logits = on_gpu({tokens, kMillion}, Format::kF32, kNanByte);
  const Status launched =
      launch<IndexLogitsPaged>(on_gpu_, "index_logits",
                               {.q = upload(q, {tokens, kHeads, kDim}, Format::kE4m3),
                                .w = upload(w, {tokens, kHeads}, Format::kF32),
                                .keys = keys,
                                .key_scales = key_scales,
                                .block_table = upload(table, {kRequests, width}, Format::kI32),
                                .q_offsets = upload(offsets, {kRequests + 1}, Format::kI32),
                                .lengths = upload(lengths, {tokens}, Format::kI32),
                                .logits = logits});
  ASSERT_TRUE(launched.ok()) << launched.message();

  std::vector<double> decoded;
  for (const uint8_t code : codes)
    decoded.push_back(to_float(E4m3{code}));
  for (const int64_t t : {int64_t{0}, int64_t{5}, int64_t{6}, int64_t{7}, int64_t{kEach - 1},
                          int64_t{kEach}, border - 1, border, tokens - 1}) {
    SCOPED_TRACE(str_cat("token ", t));
    std::vector<double> exact(static_cast<size_t>(kLive * kPage));
    for (size_t key = 0; key < exact.size(); ++key) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const uint8_t* of_head = q.data() + (t * kHeads + h) * kDim;
        double dot = 0;
        for (size_t d = 0; d < kDim; ++d)
          dot += double{to_float(E4m3{of_head[d]})} * decoded[key * kDim + d];
        exact[key] += std::max(dot, 0.0) * double{w[static_cast<size_t>(t * kHeads + h)]};
      }
      exact[key] *= double{scales[key]};
    }
    const std::vector<float> found = fetch<float>(logits, t * kMillion, kMillion);
    const int64_t length = lengths[static_cast<size_t>(t)];
    double error = 0;
    double size = 0;
    int64_t not_masked = 0;
    for (int64_t j = 0; j < kMillion; ++j) {
      const double x = found[static_cast<size_t>(j)];
      if (j >= length) {
        if (x != -INFINITY) ++not_masked;
        continue;
      }
      const double e = exact[static_cast<size_t>(entry(t / kEach, j / kPage) * kPage + j % kPage)];
      error += (x - e) * (x - e);
      size += e * e;
    }
    EXPECT_EQ(not_masked, 0);
    EXPECT_TRUE(std::sqrt(error) <= 1e-3 * std::sqrt(size)) << error << " of " << size;
  }
}

}  // namespace
}  // namespace fathom
