// The forms in which callers pass a decode: queries in two parts, keys by slot, sinks, free scales.
#include <gtest/gtest.h>
#include <limits>
#include <numeric>

#include "fathom/kernels/attn/merge_state/merge_state.h"
#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/kernels/attn/tree_keys.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr int64_t kD = 48, kL = 32, kN = 5, kPage = 16;

Format format_of(const std::string& variant) {
  return variant == "portable" ? Format::kF32 : Format::kBf16;
}

/// One request whose pages lie in the cache in descending order.
struct Request {
  int64_t keys;
  TestTensor q, cache, pages, kv_lens, o, lse;

  Request(int64_t num_keys, Format format, uint64_t seed)
      : keys(num_keys),
        q({1, kN, kD}, format),
        cache({num_pages(), kPage, kD}, format),
        pages({1, num_pages()}, Format::kI32),
        kv_lens({1}, Format::kI32, static_cast<float>(num_keys)),
        o({1, kN, kL}, format, NAN),
        lse({1, kN}, Format::kF32, NAN) {
    Rng rng(seed, 1);
    q.randomise(rng);
    cache.randomise(rng);
    for (int64_t i = 0; i < num_pages(); ++i)
      pages.set(i, static_cast<float>(num_pages() - 1 - i));
  }

  int64_t num_pages() const { return (keys + kPage - 1) / kPage; }

  int64_t slot(int64_t key) const { return (num_pages() - 1 - key / kPage) * kPage + key % kPage; }

  MlaDecode::Args args() const {
    return {.q = q.view(),
            .cache = cache.view(),
            .block_table = pages.view(),
            .kv_lens = kv_lens.view(),
            .o = o.view(),
            .lse = lse.view(),
            .scale = 0.2f};
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out = o.bytes();
    out.insert(out.end(), lse.bytes().begin(), lse.bytes().end());
    return out;
  }
};

TEST(MlaDecodeCalls, AQueryInTwoPartsHasTheBitsOfAWholeOne) {
  TestExec ex;
  for (const std::string& variant : variants_of<MlaDecode>()) {
    const Request whole(70, format_of(variant), 1), apart(70, format_of(variant), 1);
    FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", whole.args()));
    MlaDecode::Args args = apart.args();
    args.q = slice_cols(apart.q.view(), 0, kL);
    args.q_pe = slice_cols(apart.q.view(), kL, kD - kL);

    FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", args));

    EXPECT_EQ(apart.bytes(), whole.bytes()) << variant;
  }
}

TEST(MlaDecodeCalls, SlotsHaveTheBitsOfThePagesTheyLieIn) {
  TestExec ex;
  for (int64_t keys : {1, 16, 17, 64, 65, 530}) {
    for (const std::string& variant : variants_of<MlaDecode>()) {
      const Request by_page(keys, format_of(variant), 2), by_slot(keys, format_of(variant), 2);
      TestTensor slots({1, keys}, Format::kI32);
      for (int64_t j = 0; j < keys; ++j)
        slots.set(j, static_cast<float>(by_slot.slot(j)));
      FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", by_page.args()));
      MlaDecode::Args args = by_slot.args();
      args.block_table = slots.view();
      args.table = KeyTable::kSlots;

      FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", args));

      EXPECT_EQ(by_slot.bytes(), by_page.bytes()) << variant << ", " << keys << " keys";
    }
  }
}

TEST(MlaDecodeCalls, QueriesWithSlotsOfTheirOwnHaveTheBitsOfDecodesOverThese) {
  TestExec ex;
  constexpr int64_t Q = 3, C = 90;
  for (const std::string& variant : variants_of<MlaDecodeMulti>()) {
    const Format format = format_of(variant);
    const Request r(200, format, 3);
    Rng rng(4, 1);
    TestTensor q({1, Q, kN, kD}, format), slots({1, Q, C}, Format::kI32);
    TestTensor o({1, Q, kN, kL}, format, NAN), lse({1, Q, kN}, Format::kF32, NAN);
    q.randomise(rng);
    for (int64_t i = 0; i < slots.size(); ++i)
      slots.set(i, i % 7 == 3 ? -1.0f : static_cast<float>(r.slot(rng.next_below(200))));
    MlaDecodeMulti::Args args = r.args();
    args.q = q.view();
    args.o = o.view();
    args.lse = lse.view();
    args.slots = slots.view();
    FATHOM_EXPECT_OK(launch<MlaDecodeMulti>(ex.with("mla_decode_multi", variant), "test", args));

    for (int64_t j = 0; j < Q; ++j) {
      std::vector<float> kept;
      for (int64_t i = 0; i < C; ++i) {
        if (slots[j * C + i] >= 0) kept.push_back(slots[j * C + i]);
      }
      const auto count = static_cast<int64_t>(kept.size());
      const TestTensor table({1, count}, Format::kI32, kept);
      const TestTensor lens({1}, Format::kI32, static_cast<float>(count));
      const Request one(200, format, 3);
      MlaDecode::Args single = one.args();
      single.q =
          make_view(static_cast<std::byte*>(q.view().data) + j * kN * kD * element_bytes(format),
                    {1, kN, kD}, format);
      single.block_table = table.view();
      single.kv_lens = lens.view();
      single.table = KeyTable::kSlots;
      FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", single));
      for (int64_t i = 0; i < kN * kL; ++i)
        ASSERT_EQ(o[j * kN * kL + i], one.o[i]) << variant << ", query " << j;
      for (int64_t n = 0; n < kN; ++n)
        ASSERT_EQ(lse[j * kN + n], one.lse[n]) << variant << ", query " << j;
    }
  }
}

// Alone: with their paths in pages of their own.
TEST(MlaDecodeCalls, TokensOfATreeHaveTheBitsOfTheSameTokensAlone) {
  TestExec ex;
  constexpr int64_t Q = 5, kRows = 20;
  for (const int64_t keys : {20, 75, 1100}) {
    for (const std::string& variant : variants_of<MlaDecodeMulti>()) {
      const Format format = format_of(variant);
      const Request r(keys, format, 3);
      Rng rng(static_cast<uint64_t>(keys), 1);
      TestTensor q({1, Q, kN, kD}, format), masks({1, Q}, Format::kI64);
      const TestTensor begins({1}, Format::kI32, static_cast<float>(keys - kRows));
      const TestTensor o({1, Q, kN, kL}, format, NAN), lse({1, Q, kN}, Format::kF32, NAN);
      q.randomise(rng);
      for (int64_t j = 0; j < Q; ++j) {
        const uint32_t own = 1u << (kRows - Q + j);
        masks.set(j, static_cast<float>(own | rng.next_below(own)));
      }
      MlaDecodeMulti::Args args = r.args();
      args.q = q.view();
      args.o = o.view();
      args.lse = lse.view();
      args.tree_masks = masks.view();
      args.tree_begins = begins.view();
      FATHOM_EXPECT_OK(launch<MlaDecodeMulti>(ex.with("mla_decode_multi", variant), "test", args));

      for (int64_t j = 0; j < Q; ++j) {
        const TreeToken token{keys - kRows, static_cast<uint64_t>(masks[j])};
        Request alone(num_seen(token), format, 4);
        for (int64_t i = 0; i < alone.keys * kD; ++i) {
          const int64_t key = place_of_seen(token, i / kD);
          alone.cache.set(alone.slot(i / kD) * kD + i % kD, r.cache[r.slot(key) * kD + i % kD]);
        }
        for (int64_t i = 0; i < kN * kD; ++i)
          alone.q.set(i, q[j * kN * kD + i]);
        FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", alone.args()));
        for (int64_t i = 0; i < kN * kL; ++i)
          ASSERT_EQ(o[j * kN * kL + i], alone.o[i]) << variant << ", query " << j;
        for (int64_t n = 0; n < kN; ++n)
          ASSERT_EQ(lse[j * kN + n], alone.lse[n]) << variant << ", query " << j;
      }
    }
  }
}

TEST(MlaDecodeCalls, StatesOverAnyPartsOfTheKeysMergeToTheWhole) {
  TestExec ex;
  const Request whole(300, Format::kF32, 5);
  FATHOM_EXPECT_OK(launch<MlaDecode>(*ex, "test", whole.args()));
  Rng rng(6, 1);
  for (int round = 0; round < 8; ++round) {
    // Every key goes to one of four parts, which may stay empty; then parts merge in order.
    std::vector<std::vector<float>> parts(4);
    for (int64_t j = 0; j < 300; ++j) {
      const uint32_t part = round == 0 ? 3 : rng.next_below(static_cast<uint32_t>(round % 4 + 1));
      parts[part].push_back(static_cast<float>(whole.slot(j)));
    }
    TestTensor o({1, kN, kL}, Format::kF32, 0.0f);
    TestTensor lse({1, kN}, Format::kF32, -std::numeric_limits<float>::infinity());
    for (const std::vector<float>& part : parts) {
      const auto count = static_cast<int64_t>(part.size());
      const Request some(300, Format::kF32, 5);
      const TestTensor table({1, count}, Format::kI32, part);
      const TestTensor lens({1}, Format::kI32, static_cast<float>(count));
      MlaDecode::Args args = some.args();
      args.block_table = table.view();
      args.kv_lens = lens.view();
      args.table = KeyTable::kSlots;
      FATHOM_EXPECT_OK(launch<MlaDecode>(*ex, "test", args));
      FATHOM_EXPECT_OK(launch<MergeState>(*ex, "test",
                                          {.o_a = o.view(),
                                           .lse_a = lse.view(),
                                           .o_b = some.o.view(),
                                           .lse_b = some.lse.view(),
                                           .o = o.view(),
                                           .lse = lse.view()}));
    }
    for (int64_t i = 0; i < o.size(); ++i)
      ASSERT_NEAR(o[i], whole.o[i], 4e-6) << "round " << round;
    for (int64_t n = 0; n < kN; ++n)
      ASSERT_NEAR(lse[n], whole.lse[n], 4e-6) << "round " << round;
  }
}

TEST(MlaDecodeCalls, ASinkAsLargeAsAllKeysTogetherHalvesTheResult) {
  TestExec ex;
  for (const std::string& variant : variants_of<MlaDecode>()) {
    const Request plain(20, format_of(variant), 7), halved(20, format_of(variant), 7);
    FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", plain.args()));
    MlaDecode::Args args = halved.args();
    args.sinks = make_view(plain.lse.view().data, {kN}, Format::kF32);
    args.o_scale = 2.0f;

    FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", args));

    // Twice half of it, in bf16 with one rounding on either side.
    for (int64_t i = 0; i < kN * kL; ++i)
      EXPECT_NEAR(halved.o[i], plain.o[i], 0.01f * std::abs(plain.o[i]) + 1e-6f) << variant;
    for (int64_t n = 0; n < kN; ++n)
      EXPECT_NEAR(halved.lse[n], plain.lse[n] + std::log(2.0f), 1e-5f) << variant;
  }
}

TEST(MlaDecodeCalls, WithoutKeysTheSinkIsAllThereIs) {
  TestExec ex;
  for (const std::string& variant : variants_of<MlaDecode>()) {
    const Request r(1, format_of(variant), 8);
    const TestTensor none({1}, Format::kI32, 0.0f);
    const TestTensor sinks({kN}, Format::kF32, 1.5f);
    MlaDecode::Args args = r.args();
    args.kv_lens = none.view();
    args.sinks = sinks.view();

    FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", args));

    for (int64_t i = 0; i < kN * kL; ++i)
      EXPECT_EQ(r.o[i], 0.0f) << variant;
    for (int64_t n = 0; n < kN; ++n)
      EXPECT_EQ(r.lse[n], 1.5f) << variant;
  }
}

TEST(MlaDecodeCalls, NanInAKeyMakesItsHeadsNanAndInfinityInAQueryToo) {
  TestExec ex;
  for (const std::string& variant : variants_of<MlaDecode>()) {
    Request r(70, format_of(variant), 9);
    r.cache.set(r.slot(66) * kD + 3, NAN);
    FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", r.args()));
    for (int64_t i = 0; i < kN * kL; ++i)
      ASSERT_TRUE(std::isnan(r.o[i])) << variant << ", element " << i;

    Request one_head(70, format_of(variant), 9);
    one_head.q.set(2 * kD + 1, std::numeric_limits<float>::infinity());
    FATHOM_EXPECT_OK(launch<MlaDecode>(ex.with("mla_decode", variant), "test", one_head.args()));
    for (int64_t i = 0; i < kN * kL; ++i)
      ASSERT_EQ(std::isnan(one_head.o[i]), i / kL == 2) << variant << ", element " << i;
  }
}

TEST(MlaDecodeCalls, RefusesPartsAndSlotsThatDoNotFit) {
  TestExec ex;
  const Request r(20, Format::kBf16, 10);
  MlaDecode::Args args = r.args();
  const auto error = [&] { return launch<MlaDecode>(*ex, "test", args).message(); };
  const auto has = [&](std::string_view text) { return error().find(text) != std::string::npos; };

  args.q = slice_cols(r.q.view(), 0, kL);
  EXPECT_TRUE(has("q has 32 numbers a head but keys have 48, and there is no q_pe")) << error();
  args.q_pe = slice_cols(r.q.view(), kL, 3);
  EXPECT_TRUE(has("q_pe")) << error();
  args = r.args();
  const TestTensor slots({1, 1, 2}, Format::kI32, std::vector<float>{3, 99});
  args.slots = slots.view();
  EXPECT_TRUE(has("mla_decode_multi takes them")) << error();
  const TestTensor q({1, 1, kN, kD}, Format::kBf16), o({1, 1, kN, kL}, Format::kBf16);
  args.q = q.view();
  args.o = o.view();
  args.lse = {};
  EXPECT_NE(launch<MlaDecodeMulti>(*ex, "test", args)
                .message()
                .find("slots[0,0,1] is 99, expected -1 to 31"),
            std::string::npos);
}

}  // namespace
}  // namespace fathom
