#include "fathom/bench/summary/layer.h"

#include <gtest/gtest.h>
#include <map>

#include "fathom/bench/plan.h"
#include "fathom/models/model.h"
#include "fathom/models/presets.h"
#include "fathom/models/registry.h"

namespace fathom {
namespace {

using Ops = std::vector<std::pair<std::string, std::string>>;  // op and kernel

/// The ops of the first MoE layer, as the model's code asks for them.
Ops dry_layer(const ReferencePoint& point) {
  OpenOptions dry;
  dry.weights = WeightOrigin::kNone;
  dry.model.attention.prefill_chunk = 2048;  // the published benchmark has no chunks
  const std::unique_ptr<Model> model =
      open_model(ModelSource::describe(find_preset("deepseek-r1-nvfp4").value()), {}, dry).value();
  BatchShape shape;
  if (point.phase == "decode") {
    shape.decode = {.count = point.batch, .new_tokens = 1, .cached = kReferenceContext - 1};
  } else {
    shape.prefill = {.count = point.batch, .new_tokens = point.seq, .cached = 0};
  }
  Recorder recorder(RecordLevel::kShapes, 1 << 14);
  EXPECT_TRUE(dry_run(*model, shape, 2, &recorder).ok());
  Ops ops;
  for (const OpRecord& r : recorder.records()) {
    for (int i = 0; i < r.scope_depth; ++i) {
      const ScopeName& scope = r.scopes[static_cast<size_t>(i)];
      if (std::string_view(scope.name) == "layer" && scope.index == 3) {
        ops.emplace_back(r.op.name, r.kernel);
      }
    }
  }
  return ops;
}

/// The kernels of the published benchmark where its formats differ from the preset's.
std::string published_kernel(const std::string& op, const std::string& kernel) {
  if (op == "q_b_proj" || op == "kv_b_proj") return "nvfp4_gemm";
  if (op == "w_kc" || op == "w_vc") return "fp8_bmm";
  return kernel;
}

class LayerOps : public testing::TestWithParam<ReferencePoint> {};

TEST_P(LayerOps, AreThoseOfTheModelsCodeInItsOrder) {
  Ops expected = dry_layer(GetParam());
  ASSERT_FALSE(expected.empty());
  for (auto& [op, kernel] : expected)
    kernel = published_kernel(op, kernel);

  Ops found;
  for (const LayerOp& op : layer_ops(GetParam()))
    found.emplace_back(op.model_op, op.kernel);

  EXPECT_EQ(found, expected);
}

TEST_P(LayerOps, EachHasACaseInTheSuite) {
  BenchKernelOptions options;
  options.suite = kReferenceSuite;
  std::map<std::string, int> cases;
  const std::vector<BenchPlanEntry> plan = plan_kernel_bench(options).value();
  for (const BenchPlanEntry& entry : plan)
    ++cases[entry.name()];

  for (const LayerOp& op : layer_ops(GetParam())) {
    EXPECT_EQ(cases[str_cat(op.kernel, "/", reference_case_name(op.op, GetParam()))], 1)
        << op.kernel << " " << op.op;
  }
}

INSTANTIATE_TEST_SUITE_P(Points,
                         LayerOps,
                         testing::Values(ReferencePoint{"decode", 1, 1},
                                         ReferencePoint{"decode", 16, 1},
                                         ReferencePoint{"decode", 32, 1},
                                         ReferencePoint{"decode", 128, 1},
                                         ReferencePoint{"prefill", 1, 128},
                                         ReferencePoint{"prefill", 1, 2048}),
                         [](const auto& point) { return point.param.name(); });

std::vector<BenchRow> rows_of_layer(const ReferencePoint& point) {
  std::vector<BenchRow> rows;
  for (const LayerOp& op : layer_ops(point)) {
    BenchRow row;
    row.kernel = op.kernel;
    row.op = op.op;
    row.case_name = reference_case_name(op.op, point);
    row.status = RowStatus::kOk;
    row.us_median = 10;
    rows.push_back(row);
  }
  return rows;
}

TEST(LayerTime, IsTheSumOfItsOps) {
  const ReferencePoint point{"decode", 8, 1};
  const std::vector<BenchRow> rows = rows_of_layer(point);

  const LayerTime time = layer_time(rows, point).value();

  EXPECT_DOUBLE_EQ(time.us, 10.0 * static_cast<double>(rows.size()));
  EXPECT_EQ(time.rows.size(), rows.size());
}

TEST(LayerTime, AnOpWithoutATimeIsNamed) {
  const ReferencePoint point{"decode", 8, 1};
  std::vector<BenchRow> rows = rows_of_layer(point);
  std::erase_if(rows, [](const BenchRow& row) { return row.op == "q_b_proj"; });
  rows.back().status = RowStatus::kWrong;
  rows.back().us_median = {};

  EXPECT_EQ(layer_time(rows, point).status().message(),
            "the layer at decode_b8 has no time: no row of q_b_proj (nvfp4_gemm), moe_combine "
            "(unpermute_weighted_sum)");
}

TEST(ReferencePoints, LimitsOfKernelsLeavePointsOut) {
  EXPECT_EQ(reference_points("latent_down_gemm").size(), 3u);
  EXPECT_EQ(reference_points("ragged_attention").size(), 6u);
  EXPECT_EQ(reference_points("rmsnorm").size(), reference_points().size());
  EXPECT_EQ(reference_limit("router_gemm", {"decode", 32, 1}),
            "the contract takes at most 16 tokens; bf16_gemm runs above");
  EXPECT_EQ(reference_limit("router_gemm", {"decode", 16, 1}), "");
}

}  // namespace
}  // namespace fathom
