#include "fathom/kernels/attn/sparse_mla/sparse_mla.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Format format_of(const std::string& variant) {
  return variant == "portable" ? Format::kF32 : Format::kBf16;
}

std::vector<float> random_values(int64_t count, uint64_t seed) {
  Rng rng(seed, 1);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(to_float(e4m3_from_float(rng.next_normal())));  // exact in all formats
  return values;
}

/// Lists of equal length, one a token.
TestTensor lists(int64_t tokens, const std::vector<float>& slots) {
  return TestTensor({tokens, static_cast<int64_t>(slots.size()) / tokens}, Format::kI32, slots);
}

/// Bytes as scales.
View as_ue8m0(const TestTensor& bytes) {
  View v = bytes.view();
  v.format = Format::kUe8m0;
  return v;
}

/// A call over one dense cache of the format that the variant computes in.
struct Dense {
  TestTensor q, values, slots, sink, o, lse;
  bool has_sink = false;

  Dense(Format format, int64_t N, int64_t D, const std::vector<float>& list, int64_t pages = 4)
      : q({1, N, D}, format, random_values(N * D, 1)),
        values({pages, 16, D}, format, random_values(pages * 16 * D, 2)),
        slots({1, static_cast<int64_t>(list.size())}, Format::kI32, list),
        sink({N}, Format::kF32),
        o({1, N, D}, format, NAN),
        lse({1, N}, Format::kF32, NAN) {}

  SparseMlaDecode::Args args() const {
    return {.q = q.view(),
            .rows = {.values = values.view(), .slots = slots.view()},
            .o = o.view(),
            .sink = has_sink ? sink.view() : View{},
            .lse = lse.view(),
            .scale = 0.3f};
  }

  /// Bytes of o, then of lse.
  std::vector<std::byte> run(Exec& ex) const {
    FATHOM_EXPECT_OK(launch<SparseMlaDecode>(ex, "test", args()));
    std::vector<std::byte> bytes = o.bytes();
    bytes.insert(bytes.end(), lse.bytes().begin(), lse.bytes().end());
    return bytes;
  }
};

TEST(SparseMlaDecode, GivesAnExampleWorkedByHand) {
  // Logits of q = (1, 0), scale 2: rows (ln 2, 1) and (0, 3) have logits 2 ln 2 and 0, weights 4
  // and
  // 1. The sink ln 3 adds 3 to the sum: o = (4 row_0 + 1 row_1) / 8, lse = ln 5.
  const float ln2 = std::log(2.0f);
  TestExec ex;
  const TestTensor q({1, 1, 2}, Format::kF32, {1, 0});
  const TestTensor values({1, 2, 2}, Format::kF32, {ln2, 1, 0, 3});
  const TestTensor slots({1, 3}, Format::kI32, {0, -1, 1});
  const TestTensor sink({1}, Format::kF32, {std::log(3.0f)});
  const TestTensor o({1, 1, 2}, Format::kF32, NAN);
  const TestTensor lse({1, 1}, Format::kF32, NAN);

  FATHOM_EXPECT_OK(
      launch<SparseMlaDecode>(*ex, "test",
                              {.q = q.view(),
                               .rows = {.values = values.view(), .slots = slots.view()},
                               .o = o.view(),
                               .sink = sink.view(),
                               .lse = lse.view(),
                               .scale = 2.0f}));

  expect_near(o.values(), {4 * std::log(2.0) / 8, 7.0 / 8}, 1e-6);
  EXPECT_NEAR(lse[0], std::log(5.0), 1e-6);
}

TEST(SparseMlaDecode, EntriesThatAreNoneAndTheirPlacesDoNotChangeBits) {
  TestExec ex;
  std::vector<float> list;
  std::vector<float> spread = {-1, -1};
  for (int i = 0; i < 150; ++i) {
    list.push_back(static_cast<float>((i * 29 + 5) % 64));
    spread.push_back(list.back());
    if (i % 3 == 0) spread.push_back(-1);
  }
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    Exec& exec = ex.with("sparse_mla_decode", variant);
    const auto expected = Dense(format_of(variant), 5, 48, list).run(exec);
    EXPECT_EQ(Dense(format_of(variant), 5, 48, spread).run(exec), expected) << variant;
  }
}

TEST(SparseMlaDecode, AListOverTwoCachesHasTheBitsOfOneCacheThatHoldsBoth) {
  TestExec ex;
  constexpr int64_t N = 9, D = 64;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    const Format format = format_of(variant);
    const std::vector<float> rows = random_values(8 * 16 * D, 2);
    const auto cut = rows.begin() + 5 * 16 * D;
    const TestTensor both({8, 16, D}, format, rows);
    const TestTensor first({5, 16, D}, format, std::vector<float>(rows.begin(), cut));
    const TestTensor second({3, 16, D}, format, std::vector<float>(cut, rows.end()));
    std::vector<float> first_list, second_list, list;
    for (int i = 0; i < 100; ++i)
      first_list.push_back(static_cast<float>(i * 7 % 80));
    for (int i = 0; i < 45; ++i)
      second_list.push_back(static_cast<float>(i * 5 % 48));
    list = first_list;
    for (float slot : second_list)
      list.push_back(slot + 80);
    const TestTensor q({1, N, D}, format, random_values(N * D, 1));
    const TestTensor o({1, N, D}, format, NAN), o_both({1, N, D}, format, NAN);
    const TestTensor slots = lists(1, first_list), extra_slots = lists(1, second_list);
    const TestTensor all_slots = lists(1, list);
    Exec& exec = ex.with("sparse_mla_decode", variant);

    FATHOM_EXPECT_OK(
        launch<SparseMlaDecode>(exec, "test",
                                {.q = q.view(),
                                 .rows = {.values = first.view(), .slots = slots.view()},
                                 .o = o.view(),
                                 .extra = {.values = second.view(), .slots = extra_slots.view()}}));
    FATHOM_EXPECT_OK(
        launch<SparseMlaDecode>(exec, "test",
                                {.q = q.view(),
                                 .rows = {.values = both.view(), .slots = all_slots.view()},
                                 .o = o_both.view()}));

    EXPECT_EQ(o.bytes(), o_both.bytes()) << variant;
  }
}

TEST(SparseMlaDecode, ThreadsDoNotChangeBits) {
  std::vector<float> list;
  for (int i = 0; i < 700; ++i)
    list.push_back(static_cast<float>(i * 11 % 64));
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    std::vector<std::byte> first;
    for (int threads : {1, 2, 3, 8}) {
      TestExec ex(threads);
      const auto bytes =
          Dense(format_of(variant), 131, 80, list).run(ex.with("sparse_mla_decode", variant));
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << variant << ", " << threads << " threads";
    }
  }
}

TEST(SparseMlaDecode, AnotherOrderChangesRoundingAlone) {
  TestExec ex;
  std::vector<float> list, reversed;
  for (int i = 0; i < 200; ++i)
    list.push_back(static_cast<float>(i * 13 % 64));
  reversed.assign(list.rbegin(), list.rend());
  const Dense one(Format::kF32, 3, 48, list), other(Format::kF32, 3, 48, reversed);

  one.run(*ex);
  other.run(*ex);

  for (int64_t i = 0; i < one.o.size(); ++i)
    EXPECT_NEAR(one.o[i], other.o[i], 1e-6) << i;
}

TEST(SparseMlaDecode, ATokenWithoutRowsIsZeroWithOrWithoutASink) {
  TestExec ex;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    for (const bool has_sink : {false, true}) {
      Dense call(format_of(variant), 3, 16, {-1, -1, -1});
      call.has_sink = has_sink;

      call.run(ex.with("sparse_mla_decode", variant));

      EXPECT_EQ(call.o.values(), std::vector<float>(48, 0.0f)) << variant;
      EXPECT_EQ(call.lse.values(), std::vector<float>(3, -kInf)) << variant;
    }
  }
}

TEST(SparseMlaDecode, TheSinkDividesTheOutputAndLeavesTheLogSumExp) {
  TestExec ex;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    Exec& exec = ex.with("sparse_mla_decode", variant);
    const Dense plain(format_of(variant), 4, 16, {3, 9, 60});
    Dense sunk(format_of(variant), 4, 16, {3, 9, 60});
    sunk.has_sink = true;
    for (int64_t n = 0; n < 4; ++n)
      sunk.sink.set(n, std::vector<float>{-kInf, kInf, 200, 0.5f}[static_cast<size_t>(n)]);

    plain.run(exec);
    sunk.run(exec);

    EXPECT_EQ(sunk.lse.values(), plain.lse.values()) << variant;
    for (int64_t d = 0; d < 16; ++d) {
      EXPECT_EQ(sunk.o[d], plain.o[d]) << variant;
      EXPECT_EQ(sunk.o[16 + d], 0.0f) << variant;
      EXPECT_EQ(sunk.o[32 + d], 0.0f) << variant << ": e^200 stands against three rows";
      const double share = 1.0 / (1.0 + std::exp(0.5 - double{plain.lse[3]}));
      EXPECT_NEAR(sunk.o[48 + d], share * double{plain.o[48 + d]}, 8e-3) << variant;
    }
  }
}

TEST(SparseMlaDecode, ANanOfAListedRowReachesEveryOutputOfItsTokenAndNoOther) {
  TestExec ex;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    const Format format = format_of(variant);
    TestTensor values({1, 4, 16}, format, random_values(64, 3));
    values.set(2 * 16 + 5, NAN);
    const TestTensor q({2, 2, 16}, format, random_values(64, 4));
    const TestTensor slots({2, 3}, Format::kI32, {0, 2, 1, 0, -1, 3});
    const TestTensor o({2, 2, 16}, format, 0.0f);

    FATHOM_EXPECT_OK(launch<SparseMlaDecode>(
        ex.with("sparse_mla_decode", variant), "test",
        {.q = q.view(), .rows = {.values = values.view(), .slots = slots.view()}, .o = o.view()}));

    for (int64_t i = 0; i < 32; ++i) {
      EXPECT_TRUE(std::isnan(o[i])) << variant << " " << i;
      EXPECT_TRUE(std::isfinite(o[32 + i])) << variant << " " << i;
    }
  }
}

TEST(SparseMlaDecode, AgreesWithMlaDecodeOverTheSameSlots) {
  // Both take the rows of a bf16 cache in blocks of 64, without the skipped ones.
  TestExec ex;
  std::vector<float> list;
  for (int i = 0; i < 130; ++i)
    list.push_back(i % 5 == 1 ? -1.0f : static_cast<float>(i * 7 % 64));
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    const Dense sparse(format_of(variant), 6, 48, list);
    const TestTensor q({1, 1, 6, 48}, format_of(variant), sparse.q.values());
    const TestTensor slots({1, 1, 130}, Format::kI32, list);
    const TestTensor table({1, 1}, Format::kI32), lens({1}, Format::kI32);
    const TestTensor o({1, 1, 6, 48}, format_of(variant), NAN);

    sparse.run(ex.with("sparse_mla_decode", variant));
    FATHOM_EXPECT_OK(launch<MlaDecodeMulti>(ex.with("mla_decode_multi", variant), "test",
                                            {.q = q.view(),
                                             .cache = sparse.values.view(),
                                             .block_table = table.view(),
                                             .kv_lens = lens.view(),
                                             .o = o.view(),
                                             .lse = {},
                                             .scale = 0.3f,
                                             .slots = slots.view()}));

    EXPECT_EQ(sparse.o.values(), o.values()) << variant;
  }
}

/// Pages as a codec of two planes lays them out: rows of `row_bytes` bytes, then scales, then a
/// pad.
struct Page {
  std::vector<std::byte> bytes;
  int64_t pages, rows, row_bytes, scale_bytes, page_bytes;

  Page(int64_t num_pages, int64_t rows_each, int64_t row, int64_t scale, int64_t pad)
      : pages(num_pages),
        rows(rows_each),
        row_bytes(row),
        scale_bytes(scale),
        page_bytes(rows_each * (row + scale) + pad) {
    bytes.assign(static_cast<size_t>(num_pages * page_bytes), std::byte{0xFF});
  }

  /// Numbers at `offset` of the rows of a plane that begins at byte `plane` of the page.
  View field(Format format, int64_t plane, int64_t row, int64_t offset, int64_t width) {
    const int64_t element = element_bytes(format);
    View v = make_view(bytes.data() + plane + offset, {pages, rows, width}, format);
    v.strides[0] = page_bytes / element;
    v.strides[1] = row / element;
    return v;
  }

  std::byte* at(int64_t slot) {
    return bytes.data() + slot / rows * page_bytes + slot % rows * row_bytes;
  }

  std::byte* scales_at(int64_t slot) {
    return bytes.data() + slot / rows * page_bytes + rows * row_bytes + slot % rows * scale_bytes;
  }
};

/// One row, so that o is the row whatever the logits are.
std::vector<float> read_row(Exec& ex, const SparseRows& cache, int64_t slot) {
  const TestTensor q({1, 1, 512}, Format::kBf16, 0.1f);
  const TestTensor slots({1, 1}, Format::kI32, {static_cast<float>(slot)});
  const TestTensor o({1, 1, 512}, Format::kBf16, NAN);
  SparseRows rows = cache;
  rows.slots = slots.view();
  FATHOM_EXPECT_OK(
      launch<SparseMlaDecode>(ex, "test", {.q = q.view(), .rows = rows, .o = o.view()}));
  return o.values();
}

TEST(SparseMlaDecode, ReadsTheRowsOf584BytesWhereAPageHasThem) {
  // 576 bytes a row, 8 bytes of scales behind all rows, pages padded to a multiple of 576.
  Page page(3, 2, 576, 8, 560);
  ASSERT_EQ(page.page_bytes, 1728);
  const int64_t slot = 3;
  std::vector<float> expected;
  for (int64_t d = 0; d < 448; ++d) {
    const auto code = static_cast<uint8_t>(d % 127 + d % 2 * 128);
    page.at(slot)[d] = std::byte{code};
    page.scales_at(slot)[d / 64] = static_cast<std::byte>(120 + d / 64);
    expected.push_back(to_float(E4m3{code}) * std::exp2(static_cast<float>(d / 64 - 7)));
  }
  for (int64_t d = 0; d < 64; ++d) {
    const Bf16 rope = bf16_from_float(static_cast<float>(d) - 20.5f);
    std::memcpy(page.at(slot) + 448 + 2 * d, &rope, 2);
    expected.push_back(to_float(rope));
  }
  TestExec ex;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    EXPECT_EQ(read_row(ex.with("sparse_mla_decode", variant),
                       {.values = page.field(Format::kE4m3, 0, 576, 0, 448),
                        .slots = {},
                        .rope = page.field(Format::kBf16, 0, 576, 448, 64),
                        .scales = page.field(Format::kUe8m0, 2 * 576, 8, 0, 7)},
                       slot),
              expected)
        << variant;
  }
}

TEST(SparseMlaDecode, ReadsTheNvfp4RowsOf384Bytes) {
  Page page(3, 4, 352, 32, 0);
  const int64_t slot = 6;
  std::vector<float> expected;
  for (int64_t d = 0; d < 448; d += 2) {
    const E2m1 even{static_cast<uint8_t>(d % 16)}, odd{static_cast<uint8_t>((d + 5) % 16)};
    const E4m3 scale = e4m3_from_float(0.25f * static_cast<float>(1 + d / 16));
    page.at(slot)[d / 2] = std::byte{pack_e2m1(even, odd)};
    page.scales_at(slot)[d / 16] = std::byte{scale.bits};
    expected.push_back(to_float(even) * to_float(scale));
    expected.push_back(to_float(odd) * to_float(scale));
  }
  for (int64_t d = 0; d < 64; ++d) {
    const Bf16 rope = bf16_from_float(static_cast<float>(3 * d));
    std::memcpy(page.at(slot) + 224 + 2 * d, &rope, 2);
    expected.push_back(to_float(rope));
  }
  TestExec ex;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    EXPECT_EQ(read_row(ex.with("sparse_mla_decode", variant),
                       {.values = page.field(Format::kU8, 0, 352, 0, 224),
                        .slots = {},
                        .rope = page.field(Format::kBf16, 0, 352, 224, 64),
                        .scales = page.field(Format::kE4m3, 4 * 352, 32, 0, 28)},
                       slot),
              expected)
        << variant;
  }
}

TEST(SparseMlaDecode, ReadsTheRowsOf656BytesAndRoundsThemToBf16ForQueriesInBf16) {
  Page page(2, 4, 656, 0, 0);
  const int64_t slot = 5;
  const float scales[4] = {0.3f, 1.7f, 0.01f, 0x1p-5f};
  std::vector<float> expected;
  for (int64_t d = 0; d < 512; ++d) {
    const auto code = static_cast<uint8_t>(d % 127);
    page.at(slot)[d] = std::byte{code};
    expected.push_back(to_float(bf16_from_float(to_float(E4m3{code}) * scales[d / 128])));
  }
  std::memcpy(page.at(slot) + 512, scales, 16);
  std::memset(page.at(slot) + 528, 0, 128);
  const TestTensor slots({1, 1}, Format::kI32, {5});
  const TestTensor q({1, 1, 576}, Format::kBf16, 0.1f);
  TestExec ex;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    const TestTensor o({1, 1, 512}, Format::kF32, NAN);
    FATHOM_EXPECT_OK(
        launch<SparseMlaDecode>(ex.with("sparse_mla_decode", variant), "test",
                                {.q = q.view(),
                                 .rows = {.values = page.field(Format::kE4m3, 0, 656, 0, 512),
                                          .slots = slots.view(),
                                          .rope = page.field(Format::kBf16, 0, 656, 528, 64),
                                          .scales = page.field(Format::kF32, 0, 656, 512, 4)},
                                 .o = o.view()}));
    EXPECT_EQ(o.values(), expected) << variant;
  }
}

TEST(SparseMlaDecode, ScalesOfUe8m0HaveBothEndsOfTheirRange) {
  // 2^-127 is a subnormal float32; times 448 it is a normal one. 255 is NaN.
  TestExec ex;
  for (const std::string& variant : variants_of<SparseMlaDecode>()) {
    TestTensor values({1, 3, 16}, Format::kE4m3, 448.0f);
    const TestTensor scales({1, 3, 1}, Format::kU8, {0, 230, 255});
    const TestTensor slots({3, 1}, Format::kI32, {0, 1, 2});
    const TestTensor q({3, 1, 16}, Format::kBf16, 0.0f);
    const TestTensor o({3, 1, 16}, Format::kF32, -1.0f);

    FATHOM_EXPECT_OK(launch<SparseMlaDecode>(
        ex.with("sparse_mla_decode", variant), "test",
        {.q = q.view(),
         .rows = {.values = values.view(), .slots = slots.view(), .scales = as_ue8m0(scales)},
         .o = o.view()}));

    EXPECT_EQ(o[0], 448 * 0x1p-127f) << variant;
    EXPECT_EQ(o[16], 448 * 0x1p103f) << variant;
    EXPECT_TRUE(std::isnan(o[32])) << variant;
  }
}

/// The message of a call over codes, after `change`.
template <class F>
std::string message_of(F&& change) {
  TestExec ex;
  const TestTensor q({2, 1, 80}, Format::kBf16);
  const TestTensor o({2, 1, 64}, Format::kBf16);
  const TestTensor codes({2, 4, 64}, Format::kE4m3), scales({2, 4, 4}, Format::kU8, 127.0f);
  const TestTensor rope({2, 4, 16}, Format::kBf16), dense({2, 4, 80}, Format::kBf16);
  TestTensor slots({2, 3}, Format::kI32), extra_slots({2, 1}, Format::kI32);
  SparseMlaDecode::Args args{.q = q.view(),
                             .rows = {.values = codes.view(),
                                      .slots = slots.view(),
                                      .rope = rope.view(),
                                      .scales = as_ue8m0(scales)},
                             .o = o.view(),
                             .extra = {.values = dense.view(), .slots = extra_slots.view()}};
  change(args);
  return launch<SparseMlaDecode>(*ex, "test", args).message();
}

TEST(SparseMlaDecode, NamesWhatDoesNotFit) {
  using Args = SparseMlaDecode::Args;
  const auto expect = [](const std::string& text, auto change) {
    const std::string message = message_of(change);
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  EXPECT_EQ(message_of([](Args&) {}), "");
  expect("slots[1,2] is 8, expected -1 to 7", [](Args& a) { a.rows.slots.as<int32_t>()[5] = 8; });
  expect("slots[0,1] is -2, expected -1 to 7", [](Args& a) { a.rows.slots.as<int32_t>()[1] = -2; });
  expect("extra_slots[1,0] is 9", [](Args& a) { a.extra.slots.as<int32_t>()[1] = 9; });
  expect("values is e4m3 but scales is not given", [](Args& a) { a.rows.scales = {}; });
  expect("scales has 3 scales a row, but values has 64 channels",
         [](Args& a) { a.rows.scales.dims[2] = 3; });
  expect("values and rope have 64 + 0 channels but q has 80", [](Args& a) { a.rows.rope = {}; });
  expect("rope is given but values is bf16", [](Args& a) {
    a.rows.values = a.extra.values;
    a.rows.scales = {};
  });
  expect("extra_scales is given but extra_values is bf16",
         [](Args& a) { a.extra.scales = a.rows.scales; });
  expect("extra_values and extra_rope have 79 + 0 channels but q has 80",
         [](Args& a) { a.extra.values.dims[2] = 79; });
  expect("extra_values is given but extra_slots is not", [](Args& a) { a.extra.slots = {}; });
  expect("extra_slots is given but extra_values is not", [](Args& a) { a.extra.values = {}; });
}

TEST(SparseMlaDecode, CountsTheRowsOfTheListsAndADryRunTakesAllEntries) {
  const TestTensor q({2, 4, 80}, Format::kBf16), o({2, 4, 64}, Format::kBf16);
  const TestTensor codes({2, 4, 64}, Format::kE4m3), scales({2, 4, 4}, Format::kU8, 127.0f);
  const TestTensor rope({2, 4, 16}, Format::kBf16);
  const TestTensor slots({2, 3}, Format::kI32, {0, -1, 7, -1, -1, 7});
  SparseMlaDecode::Args args{.q = q.view(),
                             .rows = {.values = codes.view(),
                                      .slots = slots.view(),
                                      .rope = rope.view(),
                                      .scales = as_ue8m0(scales)},
                             .o = o.view()};

  const Cost cost = cost_of<SparseMlaDecode>(args);
  EXPECT_EQ(cost.flops, 2.0 * 3 * 4 * (80 + 64));
  EXPECT_EQ(cost.bytes_read, 3 * (64 + 32 + 4) + 2 * 4 * 80 * 2 + 6 * 4);
  EXPECT_EQ(cost.bytes_written, 2 * 4 * 64 * 2);

  args.rows.slots.data = nullptr;
  EXPECT_EQ(SparseMlaDecode::cost(args).flops, 2.0 * 6 * 4 * (80 + 64));
}

TEST(SparseMlaPrefill, HasTheBitsOfDecodeOverACacheOfTheSameRows) {
  TestExec ex;
  std::vector<float> list, with_strays;
  for (int i = 0; i < 150; ++i) {
    list.push_back(static_cast<float>(i * 7 % 64));
    with_strays.push_back(list.back());
    if (i % 4 == 0) with_strays.push_back(i % 8 == 0 ? 64.0f : -5.0f);
  }
  for (const std::string& variant : variants_of<SparseMlaPrefill>()) {
    const Dense decode(format_of(variant), 9, 48, list);
    const TestTensor kv({64, 48}, format_of(variant), decode.values.values());
    const TestTensor ids = lists(1, with_strays);
    const TestTensor o({1, 9, 48}, format_of(variant), NAN);
    const TestTensor lse({1, 9}, Format::kF32, NAN);

    decode.run(ex.with("sparse_mla_decode", variant));
    FATHOM_EXPECT_OK(launch<SparseMlaPrefill>(ex.with("sparse_mla_prefill", variant), "test",
                                              {.q = decode.q.view(),
                                               .kv = kv.view(),
                                               .ids = ids.view(),
                                               .o = o.view(),
                                               .lse = lse.view(),
                                               .scale = 0.3f}));

    EXPECT_EQ(o.bytes(), decode.o.bytes()) << variant;
    EXPECT_EQ(lse.bytes(), decode.lse.bytes()) << variant;
  }
}

TEST(SparseMlaPrefill, RefusesLengthsThatDoNotExist) {
  TestExec ex;
  const TestTensor q({2, 1, 8}, Format::kBf16), kv({3, 8}, Format::kBf16);
  const TestTensor ids({2, 4}, Format::kI32), o({2, 1, 8}, Format::kBf16);
  TestTensor lengths({2}, Format::kI32, {0, 5});
  const auto message = [&] {
    return launch<SparseMlaPrefill>(*ex, "test",
                                    {.q = q.view(),
                                     .kv = kv.view(),
                                     .ids = ids.view(),
                                     .o = o.view(),
                                     .lengths = lengths.view()})
        .message();
  };
  EXPECT_NE(message().find("lengths[1] is 5, expected 0 to 4"), std::string::npos) << message();
  lengths.set(1, -1);
  EXPECT_NE(message().find("lengths[1] is -1"), std::string::npos) << message();
  lengths.set(1, 4);
  EXPECT_EQ(message(), "");
}

}  // namespace
}  // namespace fathom
