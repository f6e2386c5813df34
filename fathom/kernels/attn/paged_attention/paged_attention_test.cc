#include "fathom/kernels/attn/paged_attention/paged_attention.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

using testing::HasSubstr;

constexpr int64_t kN = 6, kNk = 2, kD = 48, kDv = 32, kPage = 16;

Format format_of(const std::string& variant) {
  return variant == "portable" ? Format::kF32 : Format::kBf16;
}

/// One request whose pages lie in the cache in descending order. Keys and values of a token are two
/// parts of one row, as a model keeps them.
struct Request {
  static constexpr int64_t kRow = kNk * (kD + kDv);

  int64_t keys;
  TestTensor q, rows, pages;

  Request(int64_t num_keys, Format format, uint64_t seed)
      : keys(num_keys),
        q({num_keys, kN, kD}, format),
        rows({num_pages(), kPage, kRow}, format),
        pages({1, num_pages()}, Format::kI32) {
    Rng rng(seed, 1);
    q.randomise(rng);
    rows.randomise(rng);
    for (int64_t i = 0; i < num_pages(); ++i)
      pages.set(i, static_cast<float>(num_pages() - 1 - i));
  }

  int64_t num_pages() const { return (keys + kPage - 1) / kPage; }

  View k() const {
    return reshape(slice_cols(rows.view(), 0, kNk * kD), {num_pages(), kPage, kNk, kD});
  }

  View v() const {
    return reshape(slice_cols(rows.view(), kNk * kD, kNk * kDv), {num_pages(), kPage, kNk, kDv});
  }
};

/// Results of tokens [begin, end), of which the request has no more yet.
std::vector<std::byte> attend(Exec& ex, const Request& r, int64_t begin, int64_t end) {
  const TestTensor o({end - begin, kN, kDv}, r.q.view().format, NAN);
  const TestTensor offsets({2}, Format::kI32, {0, static_cast<float>(end - begin)});
  const TestTensor kv_lens({1}, Format::kI32, static_cast<float>(end));
  FATHOM_EXPECT_OK(launch<PagedAttention>(ex, "test",
                                          {.q = slice_rows(r.q.view(), begin, end - begin),
                                           .k = r.k(),
                                           .v = r.v(),
                                           .q_offsets = offsets.view(),
                                           .block_table = r.pages.view(),
                                           .kv_lens = kv_lens.view(),
                                           .o = o.view(),
                                           .scale = 0.25f}));
  return o.bytes();
}

TEST(PagedAttention, HasTheBitsOfAttentionOverTheSameKeysInOrder) {
  TestExec ex;
  for (const std::string& variant : variants_of<PagedAttention>()) {
    const Request r(211, format_of(variant), 1);
    TestTensor k({r.keys, kNk, kD}, r.q.view().format), v({r.keys, kNk, kDv}, r.q.view().format);
    for (int64_t j = 0; j < r.keys; ++j) {
      const int64_t row = ((r.num_pages() - 1 - j / kPage) * kPage + j % kPage) * Request::kRow;
      for (int64_t i = 0; i < kNk * kD; ++i)
        k.set(j * kNk * kD + i, r.rows[row + i]);
      for (int64_t i = 0; i < kNk * kDv; ++i)
        v.set(j * kNk * kDv + i, r.rows[row + kNk * kD + i]);
    }
    const TestTensor o({r.keys, kN, kDv}, r.q.view().format, NAN);
    const TestTensor offsets({2}, Format::kI32, {0, static_cast<float>(r.keys)});
    FATHOM_EXPECT_OK(launch<RaggedAttention>(ex.with("ragged_attention", variant), "test",
                                             {.q = r.q.view(),
                                              .k = k.view(),
                                              .v = v.view(),
                                              .q_offsets = offsets.view(),
                                              .kv_offsets = offsets.view(),
                                              .o = o.view(),
                                              .lse = {},
                                              .scale = 0.25f}));

    EXPECT_EQ(attend(ex.with("paged_attention", variant), r, 0, r.keys), o.bytes()) << variant;
  }
}

TEST(PagedAttention, ATokenHasTheSameBitsPrefilledInPiecesOrDecoded) {
  TestExec ex;
  for (const std::string& variant : variants_of<PagedAttention>()) {
    const Request r(150, format_of(variant), 2);
    Exec& exec = ex.with("paged_attention", variant);
    const std::vector<std::byte> whole = attend(exec, r, 0, r.keys);
    const size_t each = whole.size() / static_cast<size_t>(r.keys);

    for (const auto& cuts :
         {std::vector<int64_t>{0, 64, 128, 150}, {0, 37, 101, 149, 150}, {0, 1, 2, 3, 63, 150}}) {
      std::vector<std::byte> parts;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto part = attend(exec, r, cuts[i], cuts[i + 1]);
        parts.insert(parts.end(), part.begin(), part.end());
      }
      ASSERT_EQ(parts.size(), each * static_cast<size_t>(r.keys));
      EXPECT_EQ(parts, whole) << variant << ", first cut " << cuts[1];
    }
  }
}

TEST(PagedAttention, ThreadsDoNotChangeBits) {
  for (const std::string& variant : variants_of<PagedAttention>()) {
    const Request r(333, format_of(variant), 3);
    TestExec one(1);
    const auto expected = attend(one.with("paged_attention", variant), r, 200, r.keys);
    for (int threads : {2, 3, 7}) {
      TestExec ex(threads);
      EXPECT_EQ(attend(ex.with("paged_attention", variant), r, 200, r.keys), expected)
          << variant << ", " << threads << " threads";
    }
  }
}

TEST(PagedAttention, RefusesLengthsPagesAndScalesThatCannotBe) {
  TestExec ex;
  const Request r(20, Format::kF32, 4);
  const TestTensor o({20, kN, kDv}, Format::kF32);
  TestTensor offsets({2}, Format::kI32, {0, 20});
  TestTensor kv_lens({1}, Format::kI32, 20.0f);
  TestTensor pages({1, 2}, Format::kI32, {1, 0});
  PagedAttention::Args args{.q = r.q.view(),
                            .k = r.k(),
                            .v = r.v(),
                            .q_offsets = offsets.view(),
                            .block_table = pages.view(),
                            .kv_lens = kv_lens.view(),
                            .o = o.view()};
  const auto refusal = [&] { return launch<PagedAttention>(*ex, "test", args).message(); };
  FATHOM_EXPECT_OK(launch<PagedAttention>(*ex, "test", args));

  kv_lens.set(0, 33);
  EXPECT_THAT(refusal(), HasSubstr("kv_lens[0] is 33 but the block table has room for 32 tokens"));
  kv_lens.set(0, 20);
  pages.set(1, 2);
  EXPECT_THAT(refusal(), HasSubstr("block_table[0]"));
  pages.set(1, 0);
  offsets.set(1, 19);
  EXPECT_THAT(refusal(), HasSubstr("q_offsets[1] is 19 but there are 20 rows of q"));
  offsets.set(1, 20);
  args.kv_scale = 0.5f;
  EXPECT_THAT(refusal(), HasSubstr("kv_scale"));
}

}  // namespace
}  // namespace fathom
