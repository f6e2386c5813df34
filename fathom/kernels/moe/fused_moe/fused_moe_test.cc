#include "fathom/kernels/moe/fused_moe/fused_moe.h"

#include <gtest/gtest.h>
#include <numeric>
#include <vector>

#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/conformance/operands/generate.h"
#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_group_gemm.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"
#include "fathom/kernels/moe/fused_moe/shuffled_weights.h"
#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

namespace fathom {
namespace {

/// A stack of weights in layout kRows16.
struct Stack {
  std::vector<std::byte> values;
  std::vector<float> scales, global;
  QuantView view;

  Stack(Format format, int64_t experts, int64_t rows, int64_t cols, Rng& rng) {
    const CaseWeightSpec spec{.num_experts = experts, .rows = rows, .cols = cols, .format = format};
    const WeightBytes bytes = weight_bytes(spec);
    values.resize(static_cast<size_t>(bytes.values));
    scales.resize(static_cast<size_t>(bytes.scales / 4));
    global.resize(static_cast<size_t>(bytes.global / 4));
    generate_weight(spec, rng,
                    {values.data(), reinterpret_cast<std::byte*>(scales.data()), global.data()},
                    nullptr);
    view.layout = WeightLayout::kRows16;
    view.values = make_view(values.data(), {experts, rows, cols}, format);
    if (!scales.empty()) view.scales = make_view(scales.data(), {bytes.scales / 4}, Format::kF32);
    if (!global.empty()) view.global = make_view(global.data(), {bytes.global / 4}, Format::kF32);
  }
};

/// One layer by the three strategies. Float32 activations, so that nothing but the order of sums
/// lies between them.
class MoeStrategies : public testing::TestWithParam<Format> {
 protected:
  static constexpr int64_t kTokens = 37, kTopK = 3, kExperts = 8, kHidden = 128, kInter = 64;
  static constexpr int64_t kSlots = kTokens * kTopK;

  MoeStrategies() {
    logits_.randomise(rng_);
    bias_.randomise(rng_, 0.1f);
    x_.randomise(rng_);
    FATHOM_EXPECT_OK(launch<GroupedTopkGate>(*ex_, "topk",
                                             {.logits = logits_.view(),
                                              .bias = bias_.view(),
                                              .weights = weights_.view(),
                                              .ids = ids_.view(),
                                              .n_group = 4,
                                              .topk_group = 2,
                                              .scaling = 2.5f}));
  }

  /// [u | g] to h, as silu_mul has it the other way round.
  static void activate(const TestTensor& sums, TestTensor& h) {
    for (int64_t r = 0; r < kSlots; ++r) {
      for (int64_t i = 0; i < kInter; ++i) {
        const float u = sums[r * 2 * kInter + i];
        const float g = sums[r * 2 * kInter + kInter + i];
        h.set(r * kInter + i, g / (1.0f + std::exp(-g)) * u);
      }
    }
  }

  Status product(const View& x, const QuantView& w, const View& offsets, const View& y) {
    if (GetParam() == Format::kNvfp4) {
      return launch<Nvfp4GroupGemm>(*ex_, "p", {.x = x, .w = w, .offsets = offsets, .y = y});
    }
    if (GetParam() == Format::kBf16) {
      return launch<Bf16GroupGemm>(*ex_, "p", {.x = x, .w = w, .offsets = offsets, .y = y});
    }
    return launch<Fp8GroupGemm>(*ex_, "p", {.x = x, .w = w, .offsets = offsets, .y = y});
  }

  std::vector<float> grouped() {
    TestTensor offsets({kExperts + 1}, Format::kI32), src_row({kSlots}, Format::kI32),
        dest({kTokens, kTopK}, Format::kI32);
    TestTensor rows({kSlots, kHidden}, Format::kF32), sums({kSlots, 2 * kInter}, Format::kF32),
        h({kSlots, kInter}, Format::kF32), out({kSlots, kHidden}, Format::kF32),
        y({kTokens, kHidden}, Format::kF32);
    FATHOM_EXPECT_OK(launch<RouteOffsets>(*ex_, "route",
                                          {.ids = ids_.view(),
                                           .offsets = offsets.view(),
                                           .src_row = src_row.view(),
                                           .dest = dest.view()}));
    FATHOM_EXPECT_OK(launch<PermuteRows>(
        *ex_, "permute", {.x = x_.view(), .src_row = src_row.view(), .y = rows.view()}));
    FATHOM_EXPECT_OK(product(rows.view(), up_.view, offsets.view(), sums.view()));
    activate(sums, h);
    FATHOM_EXPECT_OK(product(h.view(), down_.view, offsets.view(), out.view()));
    FATHOM_EXPECT_OK(launch<UnpermuteWeightedSum>(
        *ex_, "sum",
        {.x = out.view(), .dest = dest.view(), .weights = weights_.view(), .y = y.view()}));
    return y.values();
  }

  std::vector<float> sorted() {
    constexpr int kBlock = 4;
    constexpr int64_t kRoom = AlignExperts::capacity(kSlots, kExperts, kBlock);
    TestTensor sorted_ids({kRoom}, Format::kI32), blocks({kRoom / kBlock}, Format::kI32),
        padded({1}, Format::kI32);
    TestTensor sums({kSlots, 2 * kInter}, Format::kF32), h({kSlots, kInter}, Format::kF32),
        out({kSlots, kHidden}, Format::kF32), y({kTokens, kHidden}, Format::kF32);
    FATHOM_EXPECT_OK(launch<AlignExperts>(*ex_, "align",
                                          {.ids = ids_.view(),
                                           .sorted_ids = sorted_ids.view(),
                                           .block_expert = blocks.view(),
                                           .num_padded = padded.view(),
                                           .block = kBlock,
                                           .num_experts = kExperts}));
    SortedMoeGemm::Args args{.x = x_.view(),
                             .w = up_.view,
                             .sorted_ids = sorted_ids.view(),
                             .block_expert = blocks.view(),
                             .num_padded = padded.view(),
                             .y = sums.view(),
                             .block = kBlock,
                             .top_k = kTopK};
    FATHOM_EXPECT_OK(launch<SortedMoeGemm>(*ex_, "up", args));
    activate(sums, h);
    args.x = h.view();
    args.w = down_.view;
    args.weights = reshape(weights_.view(), {kSlots});
    args.y = out.view();
    args.top_k = 1;
    FATHOM_EXPECT_OK(launch<SortedMoeGemm>(*ex_, "down", args));
    FATHOM_EXPECT_OK(launch<TopkSum>(
        *ex_, "sum", {.x = reshape(out.view(), {kTokens, kTopK, kHidden}), .y = y.view()}));
    return y.values();
  }

  /// The arguments that the three fused contracts share.
  template <class K>
  typename K::Args fused_args(const View& y) {
    return {.logits = logits_.view(),
            .bias = bias_.view(),
            .x = x_.view(),
            .w_up = up_.view,
            .w_down = down_.view,
            .y = y,
            .routing = {.method = RoutingMethod::kDeepSeekV3,
                        .top_k = kTopK,
                        .n_group = 4,
                        .topk_group = 2,
                        .scaling = 2.5f}};
  }

  std::vector<float> fused() {
    TestTensor y({kTokens, kHidden}, Format::kF32);
    Status status;
    if (GetParam() == Format::kNvfp4) {
      status = launch<FusedMoeNvfp4>(*ex_, "moe", fused_args<FusedMoeNvfp4>(y.view()));
    } else if (GetParam() == Format::kBf16) {
      status = launch<FusedMoeBf16>(*ex_, "moe", fused_args<FusedMoeBf16>(y.view()));
    } else {
      status = launch<FusedMoeFp8Block>(*ex_, "moe", fused_args<FusedMoeFp8Block>(y.view()));
    }
    EXPECT_TRUE(status.ok()) << status.message();
    return y.values();
  }

  TestExec ex_;
  Rng rng_{7, 1};
  TestTensor logits_{{kTokens, kExperts}, Format::kF32}, bias_{{kExperts}, Format::kF32},
      x_{{kTokens, kHidden}, Format::kF32}, weights_{{kTokens, kTopK}, Format::kF32},
      ids_{{kTokens, kTopK}, Format::kI32};
  Stack up_{GetParam(), kExperts, 2 * kInter, kHidden, rng_};
  Stack down_{GetParam(), kExperts, kHidden, kInter, rng_};
};

TEST_P(MoeStrategies, GroupedSortedAndFusedAgree) {
  const std::vector<float> a = grouped();

  // The sorted strategy multiplies by the weight before it sums, which rounds once more a term.
  const std::vector<float> b = sorted();
  const std::vector<float> c = fused();

  double size = 0;
  for (float v : a)
    size += double{v} * double{v};
  size = std::sqrt(size / static_cast<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(double{a[i]}, double{b[i]}, 4e-6 * size) << "sorted, element " << i;
    ASSERT_NEAR(double{a[i]}, double{c[i]}, 4e-6 * size) << "fused, element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         MoeStrategies,
                         testing::Values(Format::kNvfp4, Format::kBf16, Format::kFp8Block),
                         [](const auto& f) { return std::string(format_name(f.param)); });

class FusedMoe : public testing::Test {
 protected:
  static constexpr int64_t kHidden = 32, kInter = 16, kExperts = 6;

  FusedMoeBf16::Args args(const TestTensor& logits, const TestTensor& x, const TestTensor& y) {
    return {.logits = logits.view(),
            .x = x.view(),
            .w_up = up_.view,
            .w_down = down_.view,
            .y = y.view(),
            .routing = {.top_k = 2}};
  }

  std::string error(const FusedMoeBf16::Args& a) {
    return launch<FusedMoeBf16>(*ex_, "moe", a).message();
  }

  TestExec ex_;
  Rng rng_{3, 1};
  Stack up_{Format::kBf16, kExperts, 2 * kInter, kHidden, rng_};
  Stack down_{Format::kBf16, kExperts, kHidden, kInter, rng_};
};

TEST_F(FusedMoe, ALongBatchHasTheBitsOfItsTokensAlone) {
  constexpr int64_t kTokens = 700;  // more than one chunk
  TestTensor logits({kTokens, kExperts}, Format::kF32), x({kTokens, kHidden}, Format::kBf16),
      all({kTokens, kHidden}, Format::kBf16), one({1, kHidden}, Format::kBf16);
  logits.randomise(rng_);
  x.randomise(rng_);
  FATHOM_EXPECT_OK(launch<FusedMoeBf16>(*ex_, "moe", args(logits, x, all)));

  for (int64_t t : {0, 511, 512, 699}) {
    FusedMoeBf16::Args single = args(logits, x, one);
    single.logits = slice_rows(logits.view(), t, 1);
    single.x = slice_rows(x.view(), t, 1);
    FATHOM_EXPECT_OK(launch<FusedMoeBf16>(*ex_, "moe", single));
    for (int64_t h = 0; h < kHidden; ++h)
      ASSERT_EQ(one[h], all[t * kHidden + h]) << "token " << t << ", column " << h;
  }
}

TEST_F(FusedMoe, NanInOneTokenStaysThere) {
  TestTensor logits({3, kExperts}, Format::kF32), x({3, kHidden}, Format::kBf16),
      y({3, kHidden}, Format::kBf16);
  logits.randomise(rng_);
  x.randomise(rng_);
  x.set(kHidden + 5, NAN);

  FATHOM_EXPECT_OK(launch<FusedMoeBf16>(*ex_, "moe", args(logits, x, y)));

  for (int64_t i = 0; i < y.size(); ++i)
    EXPECT_EQ(std::isnan(y[i]), i / kHidden == 1) << "element " << i;
}

TEST_F(FusedMoe, LinearRowsComeBeforeGateRows) {
  // One expert of one intermediate column, x = 1: u = 3, g = 2, y = silu(2) * 3 in column 0.
  TestTensor logits({1, 1}, Format::kF32, 0.0f), x({1, 1}, Format::kF32, 1.0f),
      y({1, 1}, Format::kF32);
  TestTensor up({1, 2, 1}, Format::kF32, std::vector<float>{3, 2}),
      down({1, 1, 1}, Format::kF32, 1.0f);
  FusedMoeBf16::Args a{.logits = logits.view(),
                       .x = x.view(),
                       .w_up = QuantView::dense(up.view()),
                       .w_down = QuantView::dense(down.view()),
                       .y = y.view(),
                       .routing = {.top_k = 1}};

  FATHOM_EXPECT_OK(launch<FusedMoeBf16>(*ex_, "moe", a));
  EXPECT_NEAR(y[0], 2.0 / (1.0 + std::exp(-2.0)) * 3.0, 1e-6);
  a.act = GatedActivation::kGeGlu;
  FATHOM_EXPECT_OK(launch<FusedMoeBf16>(*ex_, "moe", a));
  EXPECT_NEAR(y[0], 0.5 * 2.0 * (1.0 + std::erf(2.0 / std::sqrt(2.0))) * 3.0, 1e-6);
}

TEST_F(FusedMoe, RefusesRoutingThatDoesNotFit) {
  TestTensor logits({3, kExperts}, Format::kF32), x({3, kHidden}, Format::kBf16),
      y({3, kHidden}, Format::kBf16);
  FusedMoeBf16::Args a = args(logits, x, y);

  a.routing.top_k = 7;
  EXPECT_NE(error(a).find("top_k is 7, expected 1 to 6"), std::string::npos) << error(a);
  a.routing.top_k = 2;
  a.routing.first_expert = 1;
  EXPECT_NE(error(a).find("experts 1 to 6 are here, but there are 6"), std::string::npos);
  a.routing.first_expert = 0;
  a.routing.method = RoutingMethod::kDeepSeekV3;
  a.routing.n_group = 4;
  EXPECT_NE(error(a).find("does not divide the 6 experts"), std::string::npos);
  a.routing.n_group = 3;
  EXPECT_EQ(error(a), "");
}

TEST_F(FusedMoe, RefusesResultsThatAreNeitherSumsNorAllParts) {
  Rng rng(1, 1);
  const Stack up(Format::kNvfp4, 2, 32, 64, rng), down(Format::kNvfp4, 2, 64, 16, rng);
  TestTensor logits({1, 2}, Format::kF32), x({1, 64}, Format::kBf16), y({1, 64}, Format::kBf16),
      rows({1, 64}, Format::kBf16);
  FusedMoeNvfp4::Args a{.logits = logits.view(),
                        .x = x.view(),
                        .w_up = up.view,
                        .w_down = down.view,
                        .y = y.view(),
                        .routing = {.top_k = 1}};
  const auto message = [&] { return launch<FusedMoeNvfp4>(*ex_, "moe", a).message(); };

  EXPECT_EQ(message(), "");
  a.rows = rows.view();
  EXPECT_NE(message().find("expected y, or rows, weights and positions"), std::string::npos);
  a.y = {};
  EXPECT_NE(message().find("expected y, or rows, weights and positions"), std::string::npos);
}

// ---- weights in the reference's order ----

/// The reference's preparation of a matrix of rows, step by step as it is described.
std::vector<uint8_t> shuffle(const ShuffledLayout& layout,
                             const std::vector<uint8_t>& plain,
                             int64_t rows,
                             int64_t row_bytes) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  if (layout.interleaved) {
    std::vector<int64_t> next;
    for (int64_t i = 0; i < rows / 2; ++i) {
      next.push_back(order[static_cast<size_t>(i)]);
      next.push_back(order[static_cast<size_t>(rows / 2 + i)]);
    }
    order = next;
  }
  const std::vector<int64_t> map16 = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
  const std::vector<int64_t> map32 = {0, 8,  16, 24, 1, 9,  17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
                                      4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31};
  if (layout.shuffle_rows > 0) {
    const std::vector<int64_t>& map = layout.shuffle_rows == 16 ? map16 : map32;
    const std::vector<int64_t> before = order;
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = before[i / map.size() * map.size() + static_cast<size_t>(map[i % map.size()])];
    }
  }
  std::vector<uint8_t> out;
  const int64_t piece = layout.block_major ? 128 : row_bytes;
  for (int64_t at = 0; at < row_bytes; at += piece) {
    for (int64_t row : order) {
      const auto from = plain.begin() + row * row_bytes + at;
      out.insert(out.end(), from, from + piece);
    }
  }
  return out;
}

std::vector<uint8_t> random_bytes(size_t count) {
  Rng rng(2, 1);
  std::vector<uint8_t> out(count);
  for (uint8_t& b : out)
    b = static_cast<uint8_t>(rng.next_below(256));
  return out;
}

TEST(ShuffledWeights, ComeBackAsTheyWere) {
  constexpr int64_t kRows = 96, kRowBytes = 384;
  const std::vector<uint8_t> plain = random_bytes(kRows * kRowBytes);
  for (bool interleaved : {false, true}) {
    for (int64_t block : {0, 16, 32}) {
      for (bool block_major : {false, true}) {
        const ShuffledLayout layout{interleaved, block, block_major};
        const std::vector<uint8_t> shuffled = shuffle(layout, plain, kRows, kRowBytes);
        std::vector<uint8_t> back(plain.size());

        FATHOM_EXPECT_OK(unshuffle_matrix(layout, shuffled.data(), kRows, kRowBytes, back.data()));

        EXPECT_EQ(back, plain) << interleaved << block << block_major;
        const bool moved = interleaved || block > 0 || block_major;
        EXPECT_EQ(shuffled != plain, moved) << interleaved << block << block_major;
      }
    }
  }
}

TEST(ShuffledWeights, ScalesAreUnswizzledAndFollowTheirRows) {
  constexpr int64_t kRows = 160, kScales = 6;
  const std::vector<uint8_t> plain = random_bytes(kRows * kScales);
  const ShuffledLayout layout{.interleaved = true, .shuffle_rows = 32};
  const std::vector<uint8_t> shuffled = shuffle(layout, plain, kRows, kScales);
  std::vector<uint8_t> swizzled(static_cast<size_t>(swizzled_128x4_bytes(kRows, kScales)));
  swizzle_128x4(shuffled.data(), kRows, kScales, swizzled.data());
  std::vector<uint8_t> back(plain.size());

  FATHOM_EXPECT_OK(unshuffle_scales(layout, swizzled.data(), kRows, kScales, back.data()));

  EXPECT_EQ(back, plain);
}

TEST(ShuffledWeights, RefusesMatricesThatBlocksDoNotFit) {
  uint8_t byte = 0;
  const auto error = [&](const ShuffledLayout& layout, int64_t rows, int64_t row_bytes) {
    return unshuffle_matrix(layout, &byte, rows, row_bytes, &byte).message();
  };

  EXPECT_NE(error({.shuffle_rows = 8}, 16, 1).find("blocks of 8, expected 0, 16 or 32"),
            std::string::npos);
  EXPECT_NE(error({.shuffle_rows = 16}, 24, 1).find("24 rows is shuffled in blocks of 16"),
            std::string::npos);
  EXPECT_NE(error({.interleaved = true}, 3, 1).find("3 rows, expected an even"), std::string::npos);
  EXPECT_NE(error({.block_major = true}, 2, 64).find("rows of 64 bytes"), std::string::npos);
}

}  // namespace
}  // namespace fathom
