// Experts whose products read FP8 or NVFP4: which kernels run, and how far the layer is from the
// exact one.
#include "fathom/layers/ffn/moe.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/base/rng.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/layers/linear.h"
#include "fathom/trace/recorder.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct TestExec {
  ThreadPool pool{2, PinThreads::kNo};
  Arena activations{Buffer::allocate(DeviceKind::kCpu, 8 << 20, "test").value()};
  Arena scratch{Buffer::allocate(DeviceKind::kCpu, 8 << 20, "test").value()};
  Recorder recorder{RecordLevel::kShapes, 64};
  Exec ex;

  TestExec() {
    ex.kernels = &cpu_kernels();
    ex.backend = Backend::kCpu;
    ex.pool = &pool;
    ex.activations = &activations;
    ex.scratch = &scratch;
    ex.recorder = &recorder;
  }
};

/// Normal numbers; a prime count of them, so that no row repeats its neighbour.
std::vector<float> normal_numbers(float scale, int64_t count, uint64_t seed) {
  std::vector<float> period(65'537);
  Rng rng(seed);
  for (float& v : period)
    v = scale * rng.next_normal();
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = period[i % period.size()];
  return out;
}

/// A stack of one matrix [1, n, k] in tiles, as a CPU has it.
struct Stack {
  std::vector<uint8_t> tiles;
  std::vector<float> scales, global;
  LinearWeight w;

  Stack(Format format,
        int64_t n,
        int64_t k,
        const void* values,
        const void* row_scales,
        float matrix_scale = 1.0f) {
    const int64_t groups = ceil_div(n, kTileRows);
    const int64_t group_scales = rows16_group_scales(format, k);
    tiles.resize(static_cast<size_t>(groups * rows16_group_bytes(format, k)));
    scales.resize(static_cast<size_t>(groups * group_scales));
    global.resize(static_cast<size_t>(groups));
    pack_rows16({.format = format,
                 .n = n,
                 .k = k,
                 .values = values,
                 .scales = row_scales,
                 .global = matrix_scale},
                {.format = format,
                 .n = n,
                 .k = k,
                 .tiles = tiles.data(),
                 .scales = scales.data(),
                 .global = global.data()},
                0, groups);
    w.w.layout = WeightLayout::kRows16;
    w.w.values = make_view(tiles.data(), {1, n, k}, format);
    if (group_scales > 0)
      w.w.scales = make_view(scales.data(), {groups, group_scales}, Format::kF32);
    if (rows16_has_global(format)) w.w.global = make_view(global.data(), {groups}, Format::kF32);
  }
};

/// Normal weights as wide as a layer's are, quantised.
Stack random_stack(Format format, int64_t n, int64_t k, uint64_t seed) {
  const std::vector<float> weights =
      normal_numbers(1.0f / std::sqrt(static_cast<float>(k)), n * k, seed);
  std::vector<uint8_t> codes(static_cast<size_t>(n * k));
  std::vector<uint8_t> bytes(codes.size() / 16);
  std::vector<float> scales(codes.size() / 128);
  const void* row_scales = bytes.data();
  float global = 1.0f;
  if (format == Format::kNvfp4) {
    global = nvfp4_global_scale(*std::max_element(weights.begin(), weights.end()));
    const Status done = nvfp4_quantize_weights(weights.data(), n, k, global, codes.data(),
                                               reinterpret_cast<E4m3*>(bytes.data()));
    FATHOM_CHECK(done.ok(), done.message());
  } else if (format == Format::kMxfp4) {
    mxfp4_quantize(weights.data(), n, k, Mxfp4Rule::kCeil, codes.data(),
                   reinterpret_cast<Ue8m0*>(bytes.data()));
  } else {
    const Status done = fp8_quantize_blocks(weights.data(), n, k, Fp8QuantOptions::Rounding::kNone,
                                            reinterpret_cast<E4m3*>(codes.data()), scales.data());
    FATHOM_CHECK(done.ok(), done.message());
    row_scales = scales.data();
  }
  return Stack(format, n, k, codes.data(), row_scales, global);
}

/// One expert of four tokens, and what it is made of.
struct Layer {
  static constexpr int64_t kTokens = 4;

  MoeShape shape{.E = 1, .K = 1};
  Stack gate_up, down;
  MoeWeights w;
  std::vector<float> x;
  std::vector<int32_t> ids = std::vector<int32_t>(kTokens, 0);
  std::vector<float> weights = std::vector<float>(kTokens, 1.0f);
  std::vector<float> input_scales, input_gs;
  int64_t hidden;

  Layer(Format format, int64_t h, int64_t width)
      : gate_up(random_stack(format, 2 * width, h, 1)),
        down(random_stack(format, h, width, 2)),
        x(normal_numbers(1.0f, kTokens * h, 3)),
        hidden(h) {
    shape.I = width;
    w.gate_up.num_parts = 1;
    w.gate_up.parts[0] = gate_up.w;
    w.down = down.w;
  }

  /// Products read NVFP4, by scales that put the largest value at the top of their range.
  void quantise_inputs() {
    const auto top = [](const std::vector<float>& v) {
      return std::abs(*std::max_element(
          v.begin(), v.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
    };
    TestExec t;
    std::vector<float> act(static_cast<size_t>(kTokens * shape.I));
    std::vector<float> halves(2 * act.size());
    int32_t offsets[] = {0, kTokens};
    FATHOM_CHECK(
        group_linear(t.ex, "gate_up_proj", make_view(x.data(), {kTokens, hidden}, Format::kF32),
                     w.gate_up.parts[0], {.offsets = make_view(offsets, {2}, Format::kI32)},
                     make_view(halves.data(), {kTokens, 2 * shape.I}, Format::kF32), 1)
            .ok());
    FATHOM_CHECK(
        launch<SiluMul>(t.ex, "act_fn",
                        {.x = make_view(halves.data(), {kTokens, 2 * shape.I}, Format::kF32),
                         .y = make_view(act.data(), {kTokens, shape.I}, Format::kF32)})
            .ok());
    input_scales = {top(x) / 2688.0f, top(act) / 2688.0f};
    input_gs = {1.0f / input_scales[0], 1.0f / input_scales[1]};
    for (int i = 0; i < 2; ++i) {
      LinearWeight& of = i == 0 ? w.gate_up.parts[0] : w.down;
      of.input_scale = make_view(&input_scales[static_cast<size_t>(i)], {1}, Format::kF32);
      of.input_gs = make_view(&input_gs[static_cast<size_t>(i)], {1}, Format::kF32);
    }
  }

  std::vector<float> run(TestExec& t, MoeActivations activations) {
    std::vector<float> y(x.size(), NAN);
    const RouterChoice choice{.ids = make_view(ids.data(), {kTokens, 1}, Format::kI32),
                              .weights = make_view(weights.data(), {kTokens, 1}, Format::kF32)};
    const Status done =
        moe_grouped(t.ex, shape, w, make_view(x.data(), {kTokens, hidden}, Format::kF32), choice,
                    activations, make_view(y.data(), {kTokens, hidden}, Format::kF32));
    FATHOM_CHECK(done.ok(), done.message());
    return y;
  }
};

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return ab / std::sqrt(aa * bb);
}

struct Budget {
  Format format;
  int64_t hidden;
  int64_t width;
  double error;  ///< 1 - cosine with the exact layer; what was measured and a fifth
};

class ExpertsInFp8 : public testing::TestWithParam<Budget> {};

// numerics.md has the measured values.
TEST_P(ExpertsInFp8, StayWithinTheirErrorBudget) {
  const Budget& b = GetParam();
  TestExec t;
  Layer layer(b.format, b.hidden, b.width);

  const double error =
      1.0 - cosine(layer.run(t, MoeActivations::kFp8), layer.run(t, MoeActivations::kAuto));

  RecordProperty("error", std::to_string(error));
  EXPECT_LT(error, b.error);
  EXPECT_GT(error, b.error / 2) << "nothing was quantised";
}

// Widths of the experts of V3, and small ones.
INSTANTIATE_TEST_SUITE_P(Widths,
                         ExpertsInFp8,
                         testing::Values(Budget{Format::kNvfp4, 512, 256, 2.1e-3},
                                         Budget{Format::kMxfp4, 512, 256, 1.1e-3},
                                         Budget{Format::kFp8Block, 512, 256, 1.1e-3},
                                         Budget{Format::kNvfp4, 7168, 2048, 2.1e-3},
                                         Budget{Format::kMxfp4, 7168, 2048, 1.1e-3},
                                         Budget{Format::kFp8Block, 7168, 2048, 1.1e-3}),
                         [](const auto& p) {
                           return str_cat(format_name(p.param.format), "_", p.param.hidden, "_",
                                          p.param.width);
                         });

class ExpertsInNvfp4 : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};

// What was measured and a fifth; numerics.md has the values.
TEST_P(ExpertsInNvfp4, StayWithinTheirErrorBudget) {
  TestExec t;
  Layer layer(Format::kNvfp4, GetParam().first, GetParam().second);
  const std::vector<float> exact = layer.run(t, MoeActivations::kAuto);
  layer.quantise_inputs();

  const double error = 1.0 - cosine(layer.run(t, MoeActivations::kAuto), exact);

  RecordProperty("error", std::to_string(error));
  EXPECT_LT(error, 1.6e-2);
  EXPECT_GT(error, 0.8e-2) << "nothing was quantised";
}

INSTANTIATE_TEST_SUITE_P(Widths,
                         ExpertsInNvfp4,
                         testing::Values(std::pair(512, 256), std::pair(7168, 2048)),
                         [](const auto& p) { return str_cat(p.param.first, "_", p.param.second); });

std::vector<std::string> ops_of(Layer& layer, MoeActivations activations) {
  TestExec t;
  layer.run(t, activations);
  std::vector<std::string> out;
  for (const OpRecord& r : t.recorder.records())
    out.push_back(str_cat(r.op.name, " ", r.kernel));
  return out;
}

TEST(ExpertsInFp8Ops, QuantiseEachTokenOnceAndWhatIsBetweenTheProducts) {
  Layer mxfp4(Format::kMxfp4, 256, 128);
  Layer fp8(Format::kFp8Block, 256, 128);

  EXPECT_THAT(ops_of(mxfp4, MoeActivations::kFp8),
              ElementsAre("prepare_moe_input route_offsets", "input_quant group_quant_fp8",
                          "shuffle_rows permute_rows", "shuffle_scales permute_rows",
                          "gate_up_proj nvfp4_fp8_group_gemm", "act_fn silu_mul",
                          "input_quant group_quant_fp8", "down_proj nvfp4_fp8_group_gemm",
                          "apply_shuffle_mul_sum unpermute_weighted_sum"));
  EXPECT_THAT(ops_of(fp8, MoeActivations::kFp8), testing::Contains("down_proj fp8_group_gemm"));
}

TEST(ExpertsInNvfp4Ops, QuantiseTheRowsOfEachProduct) {
  Layer layer(Format::kNvfp4, 256, 128);
  layer.quantise_inputs();

  EXPECT_THAT(
      ops_of(layer, MoeActivations::kAuto),
      ElementsAre("prepare_moe_input route_offsets", "shuffle_rows permute_rows",
                  "input_quant nvfp4_quant_experts", "gate_up_proj nvfp4_group_gemm",
                  "act_fn silu_mul", "input_quant nvfp4_quant_experts",
                  "down_proj nvfp4_group_gemm", "apply_shuffle_mul_sum unpermute_weighted_sum"));
}

// Codes of MXFP4 times powers of two are codes of E4M3 too.
TEST(GroupLinear, Mxfp4IsExactForRowsInFp8) {
  constexpr int64_t kN = 16, kK = 128;
  TestExec t;
  std::vector<uint8_t> codes(kN * kK / 2);
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>(i * 37 + i / 64);
  std::vector<Ue8m0> scales(kN * kK / 32);
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i].bits = static_cast<uint8_t>(127 + i % 14);  // 2^13 apart
  std::vector<float> w(kN * kK);
  mxfp4_dequantize(codes.data(), scales.data(), kN, kK, w.data());
  const Stack stack(Format::kMxfp4, kN, kK, codes.data(), scales.data());
  std::vector<E4m3> x(kK);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = e4m3_from_float(static_cast<float>(i % 5) - 2.0f);
  std::vector<float> x_scales{2.0f};
  std::vector<int32_t> offsets{0, 1};
  std::vector<float> y(kN, NAN);

  const Status done =
      group_linear(t.ex, "down_proj", make_view(x.data(), {1, kK}, Format::kFp8Group), stack.w,
                   {.offsets = make_view(offsets.data(), {2}, Format::kI32)},
                   make_view(y.data(), {1, kN}, Format::kF32), 1,
                   make_view(x_scales.data(), {1, 1}, Format::kF32));

  ASSERT_TRUE(done.ok()) << done.message();

  for (size_t n = 0; n < kN; ++n) {
    double sum = 0;
    for (size_t k = 0; k < kK; ++k)
      sum += 2.0 * double{to_float(x[k])} * double{w[n * kK + k]};
    EXPECT_EQ(double{y[n]}, sum) << n;
  }
}

TEST(GroupLinear, RowsInFp8NeedAProductThatTakesThem) {
  TestExec t;
  std::vector<float> scale{1.0f};
  LinearWeight w;
  w.w.values = make_view(nullptr, {1, 16, 128}, Format::kBf16);

  const Status status = group_linear(
      t.ex, "down_proj", make_view(nullptr, {1, 128}, Format::kFp8Group), w,
      {.offsets = make_view(nullptr, {2}, Format::kI32)}, make_view(nullptr, {1, 16}, Format::kF32),
      1, make_view(scale.data(), {1, 1}, Format::kF32));

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              HasSubstr("no grouped kernel takes weights [1, 16, 128] bf16: x is"));
}

int64_t row_of(const MoeCall& call, const MoeOptions& options) {
  const Result<int> row = choose_moe(call, options);
  FATHOM_CHECK(row.ok(), row.status().message());
  return *row;
}

/// A router in float32, and tokens that choose by it.
struct RouterLayer {
  static constexpr int64_t kHidden = 64;

  MoeContext m;
  MoeWeights w;
  std::vector<float> gate = normal_numbers(0.3f, 16 * kHidden, 4);
  std::vector<float> bias = normal_numbers(0.1f, 16, 5);
  std::vector<float> x = normal_numbers(1.0f, 17 * kHidden, 6);
  int32_t arrivals = 0;

  RouterLayer() {
    m.shape = {.E = 16,
               .K = 4,
               .rule = RouterRule::kGroupedSigmoid,
               .n_group = 4,
               .topk_group = 2,
               .renormalize = true,
               .scaling = 2.5f};
    w.gate.w.values = make_view(gate.data(), {16, kHidden}, Format::kF32);
    w.bias = make_view(bias.data(), {16}, Format::kF32);
    m.arrivals = make_view(&arrivals, {1}, Format::kI32);
  }

  RouterChoice route(TestExec& t, int64_t tokens, bool join, MoeStrategy strategy) {
    m.options.join_router = join;
    Result<RouterChoice> choice = route_tokens(
        t.ex, m, w, make_view(x.data(), {tokens, kHidden}, Format::kF32), {}, strategy);
    FATHOM_CHECK(choice.ok(), choice.status().message());
    return *choice;
  }
};

template <class T>
std::vector<T> elements(const View& v) {
  return {v.as<const T>(), v.as<const T>() + v.numel()};
}

TEST(JoinedRouter, ChoosesAndSortsAsItsPartsDo) {
  TestExec t;
  RouterLayer layer;
  const RouterChoice apart = layer.route(t, 4, false, MoeStrategy::kGrouped);
  ASSERT_FALSE(apart.order.offsets.present());
  RowOrder order = row_order(t.ex, layer.m.shape, 4).value();
  ASSERT_TRUE(launch<RouteOffsets>(t.ex, "route",
                                   {.ids = apart.ids,
                                    .offsets = order.offsets,
                                    .src_row = order.src_row,
                                    .dest = order.dest})
                  .ok());

  const RouterChoice joined = layer.route(t, 4, true, MoeStrategy::kGrouped);

  EXPECT_EQ(elements<int32_t>(joined.ids), elements<int32_t>(apart.ids));
  EXPECT_EQ(elements<float>(joined.weights), elements<float>(apart.weights));
  EXPECT_EQ(elements<int32_t>(joined.order.offsets), elements<int32_t>(order.offsets));
  EXPECT_EQ(elements<int32_t>(joined.order.src_row), elements<int32_t>(order.src_row));
  EXPECT_EQ(elements<int32_t>(joined.order.dest), elements<int32_t>(order.dest));
  EXPECT_EQ(layer.arrivals, 0);
  EXPECT_FALSE(layer.route(t, 4, true, MoeStrategy::kSorted).order.offsets.present());
  EXPECT_FALSE(layer.route(t, 5, true, MoeStrategy::kGrouped).order.offsets.present());
  std::vector<std::string> ops;
  for (const OpRecord& r : t.recorder.records())
    ops.push_back(str_cat(r.op.name, " ", r.kernel));
  EXPECT_THAT(ops, ElementsAre("gate bf16_gemm", "topk grouped_topk_gate", "route route_offsets",
                               "gate_topk router", "gate_topk router", "gate bf16_gemm",
                               "topk grouped_topk_gate"));
}

TEST(MoeTable, ActivationsInFp8AreForGroupedProducts) {
  const MoeOptions fp8{.strategy = {}, .activations = MoeActivations::kFp8};
  const auto refused = [](const MoeCall& call, const MoeOptions& options) {
    return choose_moe(call, options).status().message();
  };
  for (const Format format :
       {Format::kNvfp4, Format::kMxfp4, Format::kFp8Block, Format::kFp8BlockUe8m0}) {
    EXPECT_EQ(row_of({.experts = format}, fp8), moe_row(MoeStrategy::kGrouped).index);
  }

  EXPECT_THAT(refused({}, fp8),
              HasSubstr("experts in bf16 do not read activations in fp8: products with activations "
                        "in fp8 are for nvfp4, mxfp4 and fp8_block\nhint: use --moe-activations "
                        "auto"));
  EXPECT_THAT(refused({.experts = Format::kMxfp8}, fp8), HasSubstr("experts in mxfp8 do not"));
  for (const Format format : {Format::kFp8Channel, Format::kInt8Channel, Format::kW4Fp8}) {
    EXPECT_THAT(refused({.experts = format}, fp8), HasSubstr("by a rule of their own"));
  }
  EXPECT_THAT(refused({.experts = Format::kNvfp4, .in_fp8_groups = false}, fp8),
              HasSubstr("multiples of 128"));
  EXPECT_THAT(refused({.experts = Format::kNvfp4},
                      {.strategy = MoeStrategy::kSorted, .activations = MoeActivations::kFp8}),
              HasSubstr("activations in fp8 are for grouped products\nhint: use --moe auto"));
  EXPECT_THAT(explain_moe({}, fp8), HasSubstr("grouped: products with activations in fp8 are for"));
}

TEST(MoeTable, ActivationsInNvfp4AreForGroupedProducts) {
  const MoeCall call{.experts = Format::kNvfp4, .quantises_input = true};
  EXPECT_EQ(row_of(call, {}), moe_row(MoeStrategy::kGrouped).index);
  for (const MoeStrategy strategy : {MoeStrategy::kSorted, MoeStrategy::kFused}) {
    EXPECT_THAT(choose_moe(call, {.strategy = strategy}).status().message(),
                HasSubstr("activations in nvfp4 are for grouped products\nhint: use --moe auto"));
  }
}

}  // namespace
}  // namespace fathom
