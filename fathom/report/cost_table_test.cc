// The cost of every op of R1 against an independent table: section 5 of the model description that
// this project was written from (parameters times bytes of a format, FLOPs of products), and the
// totals of whole steps. Activations are apart: the table counts weights and cache alone.
#include <cmath>
#include <gtest/gtest.h>
#include <map>

#include "fathom/report/record/dry_trace.h"
#include "fathom/report/test_models_test.h"

namespace fathom {
namespace {

// One call, by op and the scope it is named in.
struct OpCost {
  const char* op;
  const char* scope;
  double mflop_a_token;  // of the products
  double r1_mb;          // weights; for experts: of one expert
  double v3_mb;
};

// deepseek-r1-nvfp4: MLPs, experts and o_proj in NVFP4, the rest bf16. deepseek-v3-fp8: linears in
// FP8, the absorbed matrices, the router and the head in bf16. Megabytes are 1e6 bytes.
constexpr OpCost kOps[] = {
    {"fused_qkv_a_proj_with_mqa", "project", 30.278, 30.278, 15.143},
    {"q_b_proj", "project", 75.497, 75.497, 37.758},
    {"o_proj", "self_attn", 234.881, 66.060, 117.469},
    {"w_kc", "absorbed", 16.777, 16.777, 16.777},
    {"w_vc", "absorbed", 16.777, 16.777, 16.777},
    {"kv_b_proj", "mha", 33.554, 33.554, 16.781},
    {"gate", "mlp", 3.670, 3.670, 3.670},
    {"gate_up_proj", "shared_experts", 58.720, 16.515, 29.367},
    {"down_proj", "shared_experts", 29.360, 8.258, 14.684},
    {"gate_up_proj", "mlp", 528.482, 148.636, 264.306},
    {"down_proj", "mlp", 264.241, 74.318, 132.153},
    {"gate_up_proj", "experts", 8 * 58.720, 16.515, 29.367},
    {"down_proj", "experts", 8 * 29.360, 8.258, 14.684},
    {"lm_head", "model", 1853.358, 1853.358, 1853.358},
};

const OpCost* table_row(const TraceOp& op) {
  for (const OpCost& row : kOps)
    if (op.op == row.op && std::string_view(op.scopes.back().name) == row.scope) return &row;
  return nullptr;
}

double distinct_experts(double tokens) {
  return 256 * (1 - std::pow(1 - 8.0 / 256, tokens));
}

TracePhase phase_of(std::string_view preset,
                    std::string_view name,
                    const TraceShape& shape,
                    int64_t chunk = 1024) {
  ModelOptions options;
  options.attention.prefill_chunk = chunk;
  auto phase = dry_phase(*dry_model(preset, options), name, shape);
  FATHOM_CHECK(phase.ok(), phase.status().message());
  return std::move(phase).value();
}

bool is_near(double found, double expected, double share) {
  return std::fabs(found - expected) <= share * expected;
}

constexpr std::string_view kR1 = "deepseek-r1-nvfp4";
constexpr std::string_view kV3 = "deepseek-v3-fp8";

// Every op of the table that the phase has, in every layer, to 1 %.
void check_ops(std::string_view preset,
               const TracePhase& p,
               double tokens,
               double rows_of_logits,
               size_t ops) {
  std::map<const OpCost*, int> met;
  for (const TraceOp& op : p.ops) {
    const OpCost* row = table_row(op);
    if (row == nullptr) continue;
    ++met[row];
    const double rows = op.op == "lm_head" ? rows_of_logits : tokens;
    const bool routed = std::string_view(row->scope) == "experts";
    const double experts = routed ? distinct_experts(tokens) : 1;
    EXPECT_PRED3(is_near, op.cost.flops * 1e-6, row->mflop_a_token * rows, 0.01)
        << row->op << " in " << row->scope;
    EXPECT_PRED3(is_near, static_cast<double>(op.traffic.weights) * 1e-6,
                 (preset == kR1 ? row->r1_mb : row->v3_mb) * experts, 0.01)
        << row->op << " in " << row->scope << ", " << tokens << " tokens, " << preset;
  }
  EXPECT_EQ(met.size(), ops);
}

// All but kv_b_proj.
TEST(CostTable, DecodeOpsAreThoseOfTheTable) {
  for (std::string_view preset : {kR1, kV3}) {
    for (int64_t batch : {1, 8, 64, 128}) {
      const TraceShape shape{.batch = batch, .prompt_tokens = 1, .kv_len = 1024};
      check_ops(preset, phase_of(preset, "decode", shape), static_cast<double>(batch),
                static_cast<double>(batch), std::size(kOps) - 1);
    }
  }
}

// All but the absorbed products.
TEST(CostTable, PrefillOpsAreThoseOfTheTable) {
  for (std::string_view preset : {kR1, kV3}) {
    const TraceShape shape{.batch = 1, .prompt_tokens = 1024, .kv_len = 1024};
    check_ops(preset, phase_of(preset, "prefill", shape), 1024, 1, std::size(kOps) - 2);
  }
}

// Per cached token 0.278528 MFLOP and 1152 bytes, in each request and layer.
TEST(CostTable, AttentionOverTheCacheIsThatOfTheTable) {
  for (int64_t batch : {1, 8, 64, 128}) {
    for (int64_t context : {1024, 8192}) {
      const TraceShape shape{.batch = batch, .prompt_tokens = 1, .kv_len = context};
      const TracePhase decode = phase_of(kR1, "decode", shape);
      const double keys = static_cast<double>(batch * context);
      int met = 0;
      for (const TraceOp& op : decode.ops) {
        if (op.op != "attn_mqa") continue;
        ++met;
        EXPECT_PRED3(is_near, op.cost.flops, 0.278528e6 * keys, 0.01);
        EXPECT_PRED3(is_near, static_cast<double>(op.traffic.cache), 1152.0 * keys, 0.01);
      }
      EXPECT_EQ(met, 61);
    }
  }
}

// Causal: half of the pairs. 2 * 128 * (192 + 128) FLOPs a pair.
TEST(CostTable, AttentionOfAPromptIsThatOfTheTable) {
  const TraceShape shape{.batch = 1, .prompt_tokens = 8192, .kv_len = 64};
  const TracePhase prefill = phase_of(kR1, "prefill", shape, 8192);
  const double pairs = 8192.0 * 8193 / 2;
  for (const TraceOp& op : prefill.ops) {
    if (op.op != "attn_mha") continue;
    EXPECT_PRED3(is_near, op.cost.flops, 0.081920e6 * pairs, 0.01);
  }
}

struct Sums {
  double flops = 0;
  double weights = 0;
  double cache = 0;
};

// Products and attention; elementwise kernels and routing are apart in the table.
bool is_product(const TraceOp& op) {
  return table_row(op) != nullptr || op.op == "attn_mqa" || op.op == "attn_mha";
}

Sums sums_of(const TracePhase& p, int layer) {
  Sums out;
  for (const TraceOp& op : p.ops) {
    if (layer >= 0 && op.index_in("layer") != layer) continue;
    if (is_product(op)) out.flops += op.cost.flops;
    out.weights += static_cast<double>(op.traffic.weights);
    out.cache += op.op == "attn_mqa" ? static_cast<double>(op.traffic.cache) : 0;
  }
  return out;
}

struct StepTotal {
  int64_t batch;
  int64_t context;
  double layer_gflop;
  double step_tflop;
  double kv_mb;  // a layer
  double fp8_layer_mb, fp8_gb;
  double nvfp4_layer_mb, nvfp4_gb;
};

constexpr StepTotal kSteps[] = {
    {1, 1024, 1.456, .091, 1.2, 605.2, 38.8, 433.2, 28.3},
    {1, 8192, 3.452, .212, 9.4, 613.5, 39.3, 441.5, 28.8},
    {1, 131072, 37.678, 2.300, 151.0, 755.0, 47.9, 583.0, 37.4},
    {8, 1024, 11.647, .725, 9.4, 2790.5, 165.5, 1665.7, 99.8},
    {8, 8192, 27.618, 1.699, 75.5, 2856.6, 169.6, 1731.8, 103.8},
    {8, 131072, 301.42, 18.40, 1208, 3989.0, 238.6, 2864.3, 172.9},
    {64, 1024, 93.17, 5.801, 75.5, 10125.9, 591.2, 5819.8, 340.9},
    {64, 8192, 220.95, 13.60, 604.0, 10654.4, 623.4, 6348.3, 373.2},
    {64, 131072, 2411.4, 147.2, 9663.7, 19714, 1176, 15408, 925.8},
    {128, 1024, 186.35, 11.60, 151.0, 11485.9, 670.3, 6617.6, 387.4},
    {128, 8192, 441.90, 27.19, 1208, 12542.9, 734.8, 7674.6, 451.9},
    {128, 131072, 4822.8, 294.4, 19327, 30662, 1840, 25794, 1557},
};

TEST(CostTable, WholeDecodeStepsAreThoseOfTheTable) {
  constexpr int kMoeLayer = 10;
  for (const StepTotal& t : kSteps) {
    SCOPED_TRACE(testing::Message() << "batch " << t.batch << ", context " << t.context);
    const TraceShape shape{.batch = t.batch, .prompt_tokens = 1, .kv_len = t.context};
    for (std::string_view preset : {kV3, kR1}) {
      const bool fp8 = preset == kV3;
      const TracePhase decode = phase_of(preset, "decode", shape);
      const Sums layer = sums_of(decode, kMoeLayer);
      const Sums step = sums_of(decode, -1);
      EXPECT_PRED3(is_near, layer.flops * 1e-9, t.layer_gflop, 0.01);
      EXPECT_PRED3(is_near, step.flops * 1e-12, t.step_tflop, 0.01);
      EXPECT_NEAR(layer.cache * 1e-6, t.kv_mb, 0.01 * t.kv_mb + 0.05)
          << "the table has one decimal";
      EXPECT_PRED3(is_near, (layer.weights + layer.cache) * 1e-6,
                   fp8 ? t.fp8_layer_mb : t.nvfp4_layer_mb, 0.01)
          << preset;
      EXPECT_PRED3(is_near, (step.weights + step.cache) * 1e-9, fp8 ? t.fp8_gb : t.nvfp4_gb, 0.01)
          << preset;
    }
  }
}

struct PromptTotal {
  int64_t tokens;
  double linears_tflop;  // of a layer, kv_b included
  double attention_tflop;
  double moe_tflop;
  double model_tflop;
  double absorbed_tflop;  // attention of a layer in the other form
};

constexpr PromptTotal kPrompts[] = {
    {1024, .383, .043, .816, 75.7, .146},
    {8192, 3.066, 2.749, 6.524, 752.6, 9.347},
    {32768, 12.262, 43.98, 26.10, 5022, 149.5},
    {131072, 49.05, 703.7, 104.4, 52283, 2392.6},
};

TEST(CostTable, WholePromptsAreThoseOfTheTable) {
  for (const PromptTotal& t : kPrompts) {
    SCOPED_TRACE(testing::Message() << t.tokens << " tokens");
    const TraceShape shape{.batch = 1, .prompt_tokens = t.tokens, .kv_len = 64};
    const TracePhase prefill = phase_of(kR1, "prefill", shape, t.tokens);
    double linears = 0;
    double attention = 0;
    double moe = 0;
    for (const TraceOp& op : prefill.ops) {
      if (op.index_in("layer") != 10 || !is_product(op)) continue;
      const bool in_mlp = std::any_of(op.scopes.begin(), op.scopes.end(), [](const ScopeName& s) {
        return std::string_view(s.name) == "mlp";
      });
      (op.op == "attn_mha" ? attention : in_mlp ? moe : linears) += op.cost.flops * 1e-12;
    }
    EXPECT_PRED3(is_near, linears, t.linears_tflop, 0.01);
    EXPECT_PRED3(is_near, attention, t.attention_tflop, 0.01);
    EXPECT_PRED3(is_near, moe, t.moe_tflop, 0.01);
    EXPECT_PRED3(is_near, sums_of(prefill, -1).flops * 1e-12, t.model_tflop, 0.01);
  }
}

TEST(CostTable, AbsorbedAttentionOfAPromptIsThatOfTheTable) {
  ModelOptions options;
  options.attention.always_absorbed = true;
  const auto model = dry_model(kR1, options);
  for (const PromptTotal& t : kPrompts) {
    const TraceShape shape{.batch = 1, .prompt_tokens = t.tokens, .kv_len = 64};
    const auto prefill = dry_phase(*model, "prefill", shape);
    ASSERT_TRUE(prefill.ok()) << prefill.status().message();
    double attention = 0;
    for (const TraceOp& op : prefill->ops)
      if (op.index_in("layer") == 10 && op.op == "attn_mqa") attention += op.cost.flops * 1e-12;
    EXPECT_PRED3(is_near, attention, t.absorbed_tflop, 0.01) << t.tokens;
  }
}

// "Sums per token and MoE layer", and the weights that attention reads in decode.
TEST(CostTable, PartsOfALayerAreThoseOfTheTable) {
  const TraceShape shape{.batch = 1, .prompt_tokens = 1, .kv_len = 1024};
  for (std::string_view preset : {kR1, kV3}) {
    double linears = 0;
    double absorbed = 0;
    double moe = 0;
    double weights = 0;
    const TracePhase decode = phase_of(preset, "decode", shape);
    for (const TraceOp& op : decode.ops) {
      const OpCost* row = table_row(op);
      if (op.index_in("layer") != 10 || row == nullptr) continue;
      const bool is_absorbed = std::string_view(row->scope) == "absorbed";
      const bool in_attention =
          op.scopes.size() > 2 && std::string_view(op.scopes[2].name) == "self_attn";
      (is_absorbed ? absorbed : in_attention ? linears : moe) += op.cost.flops * 1e-6;
      if (in_attention) weights += static_cast<double>(op.traffic.weights) * 1e-6;
    }
    EXPECT_PRED3(is_near, linears, 340.66, 0.01);
    EXPECT_PRED3(is_near, absorbed, 33.55, 0.01);
    EXPECT_PRED3(is_near, moe, 796.39, 0.01);
    EXPECT_PRED3(is_near, weights, preset == kR1 ? 205.4 : 203.9, 0.01) << preset;
  }
}

// The draft layer of one token: eh_proj and a layer of bf16.
TEST(CostTable, DraftProjectionIsThatOfTheTable) {
  const TraceShape shape{.batch = 1, .prompt_tokens = 1, .kv_len = 64};
  const TracePhase draft = phase_of(kR1, "draft", shape);
  int met = 0;
  for (const TraceOp& op : draft.ops) {
    if (op.op != "eh_proj") continue;
    ++met;
    EXPECT_PRED3(is_near, op.cost.flops * 1e-6, 205.521, 0.01);
    EXPECT_PRED3(is_near, static_cast<double>(op.traffic.weights) * 1e-6, 205.521, 0.01);
  }
  EXPECT_EQ(met, 1);
}

TEST(CostTable, TrafficAddsUpToTheCostOfTheContract) {
  const TraceShape shape{.batch = 4, .prompt_tokens = 64, .kv_len = 1024};
  for (const char* preset : {"deepseek-r1-nvfp4", "deepseek-v3.2", "deepseek-v4-flash"}) {
    const auto phases = dry_phases(*dry_model(preset), shape);
    ASSERT_TRUE(phases.ok()) << phases.status().message();
    for (const TracePhase& p : *phases) {
      for (const TraceOp& op : p.ops) {
        EXPECT_EQ(op.traffic.weights + op.traffic.cache + op.traffic.activations, op.cost.bytes())
            << preset << " " << op.op;
        EXPECT_GE(op.traffic.activations, 0) << preset << " " << op.op;
      }
    }
  }
}

}  // namespace
}  // namespace fathom
