#include "fathom/kernels/sparse/index_prepare/index_prepare.h"

#include <cmath>
#include <limits>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/rope/rope/rope.h"
#include "fathom/kernels/sparse/hadamard/hadamard.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Rows of a table: cosines and sines of 0.3 p and 1.1 p for the first two pairs, and so on.
std::vector<float> table_rows(int64_t positions, int64_t R) {
  std::vector<float> table(static_cast<size_t>(positions * R));
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < R / 2; ++i) {
      const double angle = static_cast<double>(p) * (0.3 + 0.8 * static_cast<double>(i));
      table[static_cast<size_t>(p * R + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(p * R + R / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

std::vector<float> normal_values(size_t count, uint64_t seed) {
  std::vector<float> values(count);
  Rng rng(seed);
  for (float& v : values)
    v = 2.0f * rng.next_normal();
  return values;
}

/// One row x through the steps, at position 1 of a table with R channels; the values of q_out.
std::vector<float> query_row(TestExec& exec,
                             std::string_view variant,
                             const std::vector<float>& x,
                             int64_t R,
                             IndexQuery::Args args) {
  const auto D = static_cast<int64_t>(x.size());
  const TestTensor q({1, 1, D}, Format::kF32, x);
  const TestTensor positions({1}, Format::kI32, 1.0f);
  const TestTensor table({2, R}, Format::kF32, table_rows(2, R));
  const TestTensor w({1, 1}, Format::kF32, 1.0f);
  const TestTensor q_out({1, 1, D}, Format::kF32);
  const TestTensor w_out({1, 1}, Format::kF32);
  args.q = q.view();
  args.positions = positions.view();
  args.table = table.view();
  args.w = w.view();
  args.q_out = q_out.view();
  args.w_out = w_out.view();
  FATHOM_EXPECT_OK(launch<IndexQuery>(exec.with("index_query", variant), "index_query", args));
  return q_out.values();
}

TEST(IndexQuery, RotatesHalfSplitOrAdjacentPairsOfTheFirstOrTheLastChannels) {
  TestExec exec;
  const std::vector<double> half_split = {.068776, -2.657637, 3.161530, 3.596799, 7, 8};
  const std::vector<double> adjacent = {7, 8, .364296, 2.206193, -2.204041, 4.488007};
  IndexQuery::Args first;
  first.transform = IndexTransform::kNone;
  IndexQuery::Args last = first;
  last.style = RopeStyle::kInterleaved;
  last.channels = RopeChannels::kLast;
  for (const std::string& variant : variants_of<IndexQuery>()) {
    expect_near(query_row(exec, variant, {1, 2, 3, 4, 7, 8}, 4, first), half_split, 1e-6);
    expect_near(query_row(exec, variant, {7, 8, 1, 2, 3, 4}, 4, last), adjacent, 1e-6);
  }
}

TEST(IndexQuery, TransformOfOneChannelHasTheSignsOfSylvesterAndQuantisesToThreeQuarters) {
  TestExec exec;
  TestTensor one({1, 1, 128}, Format::kBf16);
  one.set(1, 8.0f);
  const TestTensor positions({1}, Format::kI32);
  const TestTensor table({1, 64}, Format::kF32, table_rows(1, 64));
  const TestTensor w({1, 1}, Format::kF32, 1.0f);
  const TestTensor codes({1, 1, 64}, Format::kU8);
  TestTensor scales({1, 1, 4}, Format::kU8);
  View scale_view = scales.view();
  scale_view.format = Format::kUe8m0;
  const TestTensor w_out({1, 1}, Format::kF32);
  for (const std::string& variant : variants_of<IndexQuery>()) {
    FATHOM_EXPECT_OK(launch<IndexQuery>(exec.with("index_query", variant), "index_query",
                                        {.q = one.view(),
                                         .positions = positions.view(),
                                         .table = table.view(),
                                         .w = w.view(),
                                         .q_out = codes.view(),
                                         .q_scales = scale_view,
                                         .w_out = w_out.view(),
                                         .style = RopeStyle::kInterleaved,
                                         .channels = RopeChannels::kLast}));
    // 0.707 in bf16 over 2^-3 is 5.66, which e2m1 holds as 6.
    for (int64_t i = 0; i < 64; ++i)
      EXPECT_EQ(codes[i], 0xF7) << i;  // +6 in the low nibble, -6 in the high one
    for (int64_t g = 0; g < 4; ++g)
      EXPECT_EQ(scales[g], 127 - 3) << g;
    EXPECT_EQ(w_out[0], 1.0f);
  }
}

TEST(IndexRow, ScalesArePowersOfTwoAboveTheLargestMagnitude) {
  struct Expected {
    float amax;
    float e4m3;
    int e2m1_byte;
  };

  constexpr Expected kRows[] = {
      {448.0f, 1.0f, 127 + 7},   {1.0f, 0x1p-8f, 127 - 2},    {7.0f, 0x1p-6f, 127 + 1},
      {6.0f, 0x1p-6f, 127},      {5.0f, 0x1p-6f, 127},        {3.0f, 0x1p-7f, 127 - 1},
      {0.75f, 0x1p-9f, 127 - 3}, {1e-4f, 0x1p-22f, 127 - 15}, {0.0f, 0x1p-22f, 1}};
  const IndexSteps steps{.width = 32};
  for (const Expected& row : kRows) {
    std::vector<float> x(32, 0.0f);
    x[11] = -row.amax;
    std::vector<E4m3> codes(32);
    std::vector<uint8_t> packed(16);
    Ue8m0 scale{};

    const float found =
        store_index_row(steps, x.data(), {.format = Format::kE4m3, .values = codes.data()});
    store_index_row(steps, x.data(),
                    {.format = Format::kU8, .values = packed.data(), .group_scales = &scale});

    EXPECT_EQ(found, row.e4m3) << row.amax;
    EXPECT_EQ(int{scale.bits}, row.e2m1_byte) << row.amax;
  }
}

/// The steps by the kernels that do one each, and the quantisers of formats/.
struct Composed {
  std::vector<float> row;  // after rotation and transform, [T*H*D]

  Composed(TestExec& exec,
           const TestTensor& q,
           const TestTensor& positions,
           const TestTensor& table,
           RopeStyle style,
           RopeChannels channels) {
    const TestTensor x({q.view().dim(0), q.view().dim(1), q.view().dim(2)}, q.view().format,
                       q.values());
    const int64_t D = q.view().dim(2);
    const int64_t R = table.view().dim(1);
    const View rotated = slice_cols(x.view(), channels == RopeChannels::kFirst ? 0 : D - R, R);
    FATHOM_EXPECT_OK(launch<RopeInplace>(*exec, "rope",
                                         {.q = rotated,
                                          .k = {},
                                          .positions = positions.view(),
                                          .table = table.view(),
                                          .style = style}));
    const View rows = reshape(x.view(), {x.size() / D, D});
    FATHOM_EXPECT_OK(
        launch<Hadamard>(*exec, "hadamard",
                         {.x = rows,
                          .y = rows,
                          .scale = static_cast<float>(std::pow(static_cast<double>(D), -0.5))}));
    row = x.values();
  }
};

TEST(IndexQuery, HasTheBitsOfRotationTransformAndQuantiserOneAfterTheOther) {
  TestExec exec;
  constexpr int64_t kT = 5, kH = 3, kD = 128;
  const TestTensor positions({kT}, Format::kI32, std::vector<float>{3, 0, 7, 1, 7});
  const TestTensor table({8, 64}, Format::kF32, table_rows(8, 64));
  const TestTensor w({kT, kH}, Format::kF32, normal_values(kT * kH, 4));
  for (Format in : {Format::kBf16, Format::kF32}) {
    for (RopeChannels channels : {RopeChannels::kFirst, RopeChannels::kLast}) {
      const RopeStyle style =
          channels == RopeChannels::kFirst ? RopeStyle::kHalfSplit : RopeStyle::kInterleaved;
      TestTensor q({kT, kH, kD}, in, normal_values(kT * kH * kD, 9));
      q.set(3, 400.0f);
      for (int64_t d = 0; d < kD; ++d)
        q.set(2 * kD + d, 0.0f);  // a row of zeros
      const Composed composed(exec, q, positions, table, style, channels);
      std::vector<E4m3> e4m3(composed.row.size());
      std::vector<float> e4m3_scales(kT * kH);
      fp8_quantize_groups(composed.row.data(), kT * kH, kD, kD, kFp8V32DemoUe8m0, e4m3.data(),
                          e4m3_scales.data());
      std::vector<uint8_t> packed(composed.row.size() / 2);
      std::vector<Ue8m0> groups(kT * kH * kD / 32);
      mxfp4_quantize(composed.row.data(), kT * kH, kD, Mxfp4Rule::kCeil, packed.data(),
                     groups.data());

      for (const std::string& variant : variants_of<IndexQuery>()) {
        IndexQuery::Args args{.q = q.view(),
                              .positions = positions.view(),
                              .table = table.view(),
                              .w = w.view(),
                              .q_out = {},
                              .w_out = {},
                              .style = style,
                              .channels = channels,
                              .weight_scale = 0.25f};
        const TestTensor w_out({kT, kH}, Format::kF32);
        args.w_out = w_out.view();
        const TestTensor plain({kT, kH, kD}, in);
        args.q_out = plain.view();
        FATHOM_EXPECT_OK(launch<IndexQuery>(exec.with("index_query", variant), "q", args));
        EXPECT_EQ(plain.values(), composed.row) << variant;
        EXPECT_EQ(w_out[1], 0.25f * w[1]);

        const TestTensor codes({kT, kH, kD}, Format::kE4m3);
        args.q_out = codes.view();
        FATHOM_EXPECT_OK(launch<IndexQuery>(exec.with("index_query", variant), "q", args));
        EXPECT_EQ(std::memcmp(codes.bytes().data(), e4m3.data(), e4m3.size()), 0) << variant;
        for (int64_t i = 0; i < kT * kH; ++i) {
          EXPECT_EQ(w_out[i], 0.25f * w[i] * e4m3_scales[static_cast<size_t>(i)]) << variant << i;
        }

        const TestTensor pairs({kT, kH, kD / 2}, Format::kU8);
        const TestTensor scales({kT, kH, kD / 32}, Format::kU8);
        args.q_out = pairs.view();
        args.q_scales = scales.view();
        args.q_scales.format = Format::kUe8m0;
        FATHOM_EXPECT_OK(launch<IndexQuery>(exec.with("index_query", variant), "q", args));
        EXPECT_EQ(std::memcmp(pairs.bytes().data(), packed.data(), packed.size()), 0) << variant;
        EXPECT_EQ(std::memcmp(scales.bytes().data(), groups.data(), groups.size()), 0) << variant;
      }
    }
  }
}

TEST(IndexQuery, NanAndInfinityStayInTheirRowAndHaveCodes) {
  TestExec exec;
  for (const std::string& variant : variants_of<IndexQuery>()) {
    TestTensor q({1, 3, 32}, Format::kF32, 1.0f);
    q.set(4, NAN);
    q.set(32 + 4, kInf);
    const TestTensor positions({1}, Format::kI32);
    const TestTensor table({1, 2}, Format::kF32, table_rows(1, 2));
    const TestTensor w({1, 3}, Format::kF32, 1.0f);
    const TestTensor codes({1, 3, 32}, Format::kE4m3);
    const TestTensor w_out({1, 3}, Format::kF32);
    FATHOM_EXPECT_OK(launch<IndexQuery>(exec.with("index_query", variant), "q",
                                        {.q = q.view(),
                                         .positions = positions.view(),
                                         .table = table.view(),
                                         .w = w.view(),
                                         .q_out = codes.view(),
                                         .w_out = w_out.view(),
                                         .transform = IndexTransform::kNone}));
    EXPECT_TRUE(std::isnan(codes[4]));
    EXPECT_EQ(codes[5], 256.0f);  // 1 / 2^-8
    EXPECT_EQ(codes[32 + 4], 448.0f);
    EXPECT_EQ(codes[32 + 5], 0.0f);
    EXPECT_EQ(w_out[1], 0x1p127f);
    EXPECT_EQ(codes[64 + 4], 256.0f);
    EXPECT_EQ(w_out[2], 0x1p-8f);
  }
}

TEST(IndexQuery, OnAGpuLanesTakeRowsOfWholeVectors) {
  const auto variant_for = [](int64_t D, int64_t R, RopeStyle style) {
    const TestTensor q({2, 3, D}, Format::kBf16);
    const TestTensor positions({2}, Format::kI32);
    const TestTensor table({1, R}, Format::kF32);
    const TestTensor w({2, 3}, Format::kF32);
    const TestTensor codes({2, 3, D}, Format::kE4m3);
    return gpu_variant_for<IndexQuery>({.q = q.view(),
                                        .positions = positions.view(),
                                        .table = table.view(),
                                        .w = w.view(),
                                        .q_out = codes.view(),
                                        .w_out = w.view(),
                                        .style = style,
                                        .transform = IndexTransform::kNone});
  };
  if (variant_for(128, 64, RopeStyle::kHalfSplit).empty())
    GTEST_SKIP() << "this build knows no kernels of a GPU";

  EXPECT_EQ(variant_for(128, 64, RopeStyle::kHalfSplit), "vectors");
  EXPECT_EQ(variant_for(32, 8, RopeStyle::kInterleaved), "vectors");
  EXPECT_EQ(variant_for(32, 8, RopeStyle::kHalfSplit), "any_layout") << "halves of four channels";
  EXPECT_EQ(variant_for(512, 64, RopeStyle::kInterleaved), "any_layout") << "more than a warp has";
  EXPECT_EQ(variant_for(100, 64, RopeStyle::kInterleaved), "any_layout");
}

/// Keys that need no care, to be changed by a test.
struct KeyCall {
  TestTensor k{{3, 128}, Format::kBf16, normal_values(3 * 128, 6)};
  TestTensor norm_w{{128}, Format::kF32, normal_values(128, 7)};
  TestTensor norm_b{{128}, Format::kF32, normal_values(128, 8)};
  TestTensor positions{{3}, Format::kI32, std::vector<float>{2, 0, 5}};
  TestTensor table{{6, 64}, Format::kF32, table_rows(6, 64)};
  TestTensor slots{{3}, Format::kI64, std::vector<float>{7, -1, 0}};
  TestTensor values{{2, 4, 128}, Format::kE4m3};
  TestTensor scales{{2, 4, 1}, Format::kF32};

  IndexKeyWrite::Args args() const {
    return {.k = k.view(),
            .norm_w = norm_w.view(),
            .norm_b = norm_b.view(),
            .positions = positions.view(),
            .table = table.view(),
            .slots = slots.view(),
            .values = values.view(),
            .scales = scales.view()};
  }
};

TEST(IndexKeyWrite, WritesRowsAndScalesOfAPageApartAndNothingElse) {
  TestExec exec;
  const KeyCall call;
  FATHOM_EXPECT_OK(launch<IndexKeyWrite>(*exec, "key", call.args()));
  // Pages of 4 keys: 4 x 128 bytes of codes, then 4 scales; each page 64 bytes longer than that.
  constexpr int64_t kPage = 4 * 128 + 4 * 4 + 64;
  std::vector<uint8_t> pages(2 * kPage, 0xAB);
  IndexKeyWrite::Args args = call.args();
  args.values.data = pages.data();
  args.values.strides = {kPage, 128, 1};
  args.scales.data = pages.data() + 4 * 128;
  args.scales.strides = {kPage / 4, 1, 1};

  FATHOM_EXPECT_OK(launch<IndexKeyWrite>(*exec, "key", args));

  const auto* codes = reinterpret_cast<const uint8_t*>(call.values.bytes().data());
  for (int64_t byte = 0; byte < 2 * kPage; ++byte) {
    const int64_t page = byte / kPage;
    const int64_t at = byte % kPage;
    const int64_t slot = page * 4 + (at < 512 ? at / 128 : (at - 512) / 4);
    const bool written = (slot == 0 || slot == 7) && at < 512 + 16;
    if (!written) {
      EXPECT_EQ(pages[static_cast<size_t>(byte)], 0xAB) << byte;
    } else if (at < 512) {
      EXPECT_EQ(pages[static_cast<size_t>(byte)], codes[slot * 128 + at % 128]) << byte;
    }
  }
  float scale = 0;
  std::memcpy(&scale, pages.data() + kPage + 512 + 3 * 4, sizeof scale);
  EXPECT_EQ(scale, call.scales[7]);
}

TEST(IndexKeyWrite, OfEqualChannelsIsTheBias) {
  TestExec exec;
  KeyCall call;
  for (int64_t i = 0; i < 128; ++i)
    call.k.set(i, 3.0f);
  call.positions.set(0, 0);  // no rotation
  const TestTensor plain({2, 4, 128}, Format::kF32);
  IndexKeyWrite::Args args = call.args();
  args.values = plain.view();
  args.scales = {};
  args.transform = IndexTransform::kNone;

  FATHOM_EXPECT_OK(launch<IndexKeyWrite>(*exec, "key", args));

  for (int64_t d = 0; d < 128; ++d)
    EXPECT_EQ(plain[7 * 128 + d], to_float(bf16_from_float(call.norm_b[d]))) << d;
}

TEST(IndexKeyWrite, EpsIsAddedToTheVariance) {
  TestExec exec;
  KeyCall call;
  for (int64_t i = 0; i < 128; ++i) {
    call.k.set(i, i % 2 == 0 ? 0x1p-10f : -0x1p-10f);
    call.norm_w.set(i, 1.0f);
    call.norm_b.set(i, 0.0f);
  }
  call.positions.set(0, 0);
  const TestTensor plain({2, 4, 128}, Format::kF32);
  IndexKeyWrite::Args args = call.args();
  args.values = plain.view();
  args.scales = {};
  args.transform = IndexTransform::kNone;

  FATHOM_EXPECT_OK(launch<IndexKeyWrite>(*exec, "key", args));

  // 2^-10 / sqrt(2^-20 + 1e-6) = 0.6988; with an eps of 1e-5 it would be 0.295.
  EXPECT_NEAR(plain[7 * 128], 0.6988f, 0.002f);
}

template <Contract K>
std::string error_of(TestExec& exec, const typename K::Args& args) {
  return std::string(launch<K>(*exec, "test", args).message());
}

TEST(IndexKeyWrite, RefusesWhatDoesNotFit) {
  TestExec exec;
  KeyCall call;
  const auto expect_error = [&](const IndexKeyWrite::Args& args, std::string_view text) {
    EXPECT_NE(error_of<IndexKeyWrite>(exec, args).find(text), std::string::npos)
        << error_of<IndexKeyWrite>(exec, args);
  };
  IndexKeyWrite::Args args = call.args();
  args.scales = {};
  expect_error(args, "scales is none but values in e4m3 needs f32");
  args = call.args();
  args.eps = 0.0f;
  expect_error(args, "eps is 0");
  const TestTensor bf16_bias({128}, Format::kBf16);
  args = call.args();
  args.norm_b = bf16_bias.view();
  expect_error(args, "norm_w is f32 but norm_b is bf16");
  call.slots.set(1, 8);
  expect_error(call.args(), "slots[1] is 8");
  call.slots.set(1, -1);
  call.positions.set(2, 6);
  expect_error(call.args(), "positions[2] is 6");
}

TEST(IndexQuery, RefusesWhatDoesNotFit) {
  TestExec exec;
  const TestTensor positions({1}, Format::kI32);
  const TestTensor table({1, 4}, Format::kF32, table_rows(1, 4));
  const TestTensor w({1, 1}, Format::kF32);
  const TestTensor q({1, 1, 48}, Format::kF32);
  const TestTensor out({1, 1, 48}, Format::kF32);
  const TestTensor half({1, 1, 24}, Format::kU8);
  const TestTensor scales({1, 1, 1}, Format::kF32);
  IndexQuery::Args args{.q = q.view(),
                        .positions = positions.view(),
                        .table = table.view(),
                        .w = w.view(),
                        .q_out = out.view(),
                        .w_out = w.view()};
  const auto expect_error = [&](std::string_view text) {
    EXPECT_NE(error_of<IndexQuery>(exec, args).find(text), std::string::npos)
        << error_of<IndexQuery>(exec, args);
  };
  expect_error("the transform needs a power of two of channels, and D is 48");
  args.transform = IndexTransform::kNone;
  FATHOM_EXPECT_OK(launch<IndexQuery>(*exec, "test", args));
  args.q_out = half.view();
  expect_error("D must be a multiple of 32, and D is 48");
  args.q_out = slice_cols(out.view(), 0, 40);
  expect_error("q_out has rows of 40 f32, expected 48 for D=48");
}

}  // namespace
}  // namespace fathom
