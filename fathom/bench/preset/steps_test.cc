#include "fathom/bench/preset/steps.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/models/dry/dry_records.h"
#include "fathom/models/registry.h"
#include "tests/support/cpu_kernels.h"
#include "tests/support/sanitized.h"

namespace fathom {
namespace {

using testing::SizeIs;

const std::vector<std::string_view> kPresets = {"deepseek-r1-nvfp4", "deepseek-v3-fp8",
                                                "deepseek-v2-lite",  "deepseek-v3.2",
                                                "deepseek-v4-flash", "deepseek-v4-pro"};

/// With keys enough for indexers to choose among.
constexpr int64_t kLongContext = 8192;

std::vector<PresetStep> steps_of(std::string_view preset, const StepChoice& choice = {}) {
  return preset_steps(find_preset(preset).value(), choice).value();
}

/// The one call of that op in that part.
const PresetCall& call_of(const PresetStep& step, std::string_view part, std::string_view op) {
  const PresetCall* found = nullptr;
  for (const PresetCall& c : step.calls) {
    if (c.part != part || c.op != op) continue;
    EXPECT_EQ(found, nullptr) << "two forms of " << op;
    found = &c;
  }
  FATHOM_CHECK(found != nullptr, "no such call");
  return *found;
}

class PresetSteps : public testing::TestWithParam<std::string_view> {};

TEST_P(PresetSteps, EveryCallHasACaseOfItsOwnName) {
  for (const PresetStep& step : steps_of(GetParam(), {.kv_len = {1024, kLongContext}})) {
    std::set<std::string> names;
    for (const PresetCall& c : step.calls) {
      const Result<Case> made = case_of(step, c);
      ASSERT_TRUE(made.ok()) << c.op << ": " << made.status().message();
      EXPECT_EQ(made->kernel, c.kernel());
      EXPECT_EQ(made->spec.name, c.case_name);
      EXPECT_TRUE(made->spec.name.starts_with(std::string(GetParam()) + "_"));
      EXPECT_TRUE(names.insert(made->kernel + "/" + made->spec.name).second) << c.case_name;
    }
  }
}

TEST_P(PresetSteps, HoldEveryCallAndByteOfTheGraph) {
  OpenOptions dry;
  dry.weights = WeightOrigin::kNone;
  const auto model =
      open_model(ModelSource::describe(find_preset(GetParam()).value()), {}, dry).value();
  for (const PresetStep& step : steps_of(GetParam())) {
    const StepPoint& p = step.point;
    BatchShape shape;
    if (p.phase == "prefill") {
      shape.prefill = {.count = p.batch, .new_tokens = p.seq, .cached = p.keys};
    } else {
      shape.decode = {.count = p.batch, .new_tokens = 1, .cached = p.keys - 1};
    }
    const DryPass pass = p.phase == "draft" ? DryPass::kDraft : DryPass::kForward;
    const std::vector<OpRecord> records = dry_records(*model, shape, {.pass = pass}).value();
    int64_t bytes = 0;
    for (const OpRecord& r : records)
      bytes += r.cost.bytes();

    EXPECT_EQ(step.num_calls(), static_cast<int64_t>(records.size())) << p.name();
    EXPECT_EQ(step.bytes(), bytes) << p.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, PresetSteps, testing::ValuesIn(kPresets), [](const auto& param) {
  std::string name(param.param);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
});

TEST(PresetStep, OfR1RunsBf16WhereThePublishedBenchmarkHasOtherFormats) {
  const PresetStep step = steps_of("deepseek-r1-nvfp4", {.phase = "decode", .batch = {1}}).at(0);

  const PresetCall& q_b = call_of(step, "project", "q_b_proj");
  EXPECT_EQ(q_b.kernel(), "bf16_gemm");
  EXPECT_EQ(q_b.call.format("w"), Format::kBf16);
  EXPECT_EQ(q_b.count, 61);
  EXPECT_EQ(q_b.in_layer, 1);
  EXPECT_EQ(q_b.case_name, "deepseek-r1-nvfp4_project.q_b_proj_decode_b1_kv1024");
  EXPECT_EQ(call_of(step, "absorbed", "w_kc").kernel(), "bf16_bmm");
  // 24,576 x 1,536 in bf16, once a layer: a sixth of the step.
  EXPECT_GT(q_b.bytes(), int64_t{61} * 24576 * 1536 * 2);
  EXPECT_NEAR(static_cast<double>(q_b.bytes()) / static_cast<double>(step.bytes()), 0.16, 0.01);
}

TEST(PresetStep, FollowsAChangedGraph) {
  Preset changed = find_preset("deepseek-r1-nvfp4").value();
  changed.formats.attention = Format::kFp8Block;
  const StepChoice choice{.phase = "decode", .batch = {8}};

  const PresetStep before = steps_of("deepseek-r1-nvfp4", choice).at(0);
  const PresetStep after = preset_steps(changed, choice).value().at(0);

  const PresetCall& q_b = call_of(after, "project", "q_b_proj");
  EXPECT_EQ(q_b.kernel(), "fp8_block_gemm");
  EXPECT_LT(q_b.bytes(), call_of(before, "project", "q_b_proj").bytes());
  EXPECT_LT(after.bytes(), before.bytes());
  EXPECT_TRUE(case_of(after, q_b).ok());
}

TEST(PresetStep, KeepsTheGapsBetweenRows) {
  const PresetStep step = steps_of("deepseek-r1-nvfp4", {.phase = "decode", .batch = {8}}).at(0);

  // q_a and kv_a are slices of one projection of 2,112 columns.
  EXPECT_EQ(call_of(step, "project", "q_a_layernorm").call.row_gap("x"), 576);
  EXPECT_EQ(call_of(step, "project", "kv_a_layernorm").call.row_gap("x"), 1600);
  EXPECT_EQ(call_of(step, "self_attn", "rotary_emb").call.row_gap("q"), 128);
  EXPECT_EQ(call_of(step, "project", "q_b_proj").call.row_gap("x"), 0);
}

TEST(StepPoints, AreOneSortWhereOnlyItsSizesAreGiven) {
  const auto names = [](const StepChoice& choice) {
    std::vector<std::string> out;
    for (const StepPoint& p : step_points(choice))
      out.push_back(p.name());
    return out;
  };

  EXPECT_THAT(names({.batch = {4}}), testing::ElementsAre("decode_b4_kv1024", "draft_b4_kv1024"));
  EXPECT_THAT(names({.seq = {64}, .kv_len = {512}}),
              testing::ElementsAre("prefill_b1_s64", "prefill_b1_s64_kv512"));
  EXPECT_THAT(names({.tables_only = true}), SizeIs(9));
  EXPECT_THAT(names({}), SizeIs(14));
}

TEST(PresetSteps, ContextBeyondTheModelsIsRefused) {
  const Result<std::vector<PresetStep>> steps =
      preset_steps(find_preset("deepseek-v2-lite").value(), {.kv_len = {int64_t{1} << 40}});

  EXPECT_FALSE(steps.ok());
}

// ---- the cases are the calls, and right ----

/// A layer of each kind, and the draft layer.
void make_small_v4(ModelConfig& c) {
  c.compress_ratios = {CompressRatio::kNone, CompressRatio::kSparse, CompressRatio::kHeavy,
                       c.compress_ratios.back()};
  c.hidden_size = 256;
  c.num_hidden_layers = 3;
  c.num_hash_layers = 1;
  c.num_attention_heads = 4;
  c.head_dim = 128;
  c.qk_rope_head_dim = 64;
  c.q_lora_rank = 128;
  c.o_groups = 2;
  c.o_lora_rank = 128;
  c.index_n_heads = 4;
  c.index_topk = 64;
  c.moe_intermediate_size = 128;
  c.n_routed_experts = 32;
  c.num_experts_per_tok = 4;
  c.vocab_size = 256;
  c.max_position_embeddings = 4096;
}

/// The structure of R1, of V2-Lite or of MoE-16B in a size that is checked in moments.
Preset small(std::string_view of, std::string_view format) {
  Preset preset = find_preset(of).value();
  ModelConfig& c = preset.config;
  if (c.is_v4()) {
    make_small_v4(c);
    preset.formats = preset_formats(format, c).value();
    return preset;
  }
  if (c.has_indexer()) c.index_topk = 64;
  c.hidden_size = 128;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.q_lora_rank = c.q_lora_rank > 0 ? 64 : 0;
  c.kv_lora_rank = 64;
  c.qk_nope_head_dim = 32;
  c.qk_rope_head_dim = 16;
  c.v_head_dim = 32;
  c.intermediate_size = 256;
  c.n_routed_experts = 32;
  c.num_experts_per_tok = 4;
  c.moe_intermediate_size = 64;
  c.first_k_dense_replace = 1;
  c.n_group = c.n_group > 1 ? 4 : c.n_group;
  c.topk_group = c.n_group > 1 ? 2 : c.topk_group;
  c.vocab_size = 256;
  c.max_position_embeddings = 4096;
  if (c.is_v1()) {
    c.num_key_value_heads = 2;
    c.kv_lora_rank = c.qk_nope_head_dim = 0;
    c.qk_rope_head_dim = c.v_head_dim = c.hidden_size / c.num_attention_heads;
  }
  preset.formats = preset_formats(format, preset.config).value();
  return preset;
}

const StepChoice kSmallSteps{.batch = {1, 3, 33}, .seq = {40}, .kv_len = {1024}};

struct SmallPreset {
  const char* of;
  const char* format;
};

class RecordedCases : public testing::TestWithParam<SmallPreset> {};

TEST_P(RecordedCases, HaveTheOperandsAndCostOfTheCallAndPassTheOracle) {
  CaseRunner runner(cpu_kernels(), 2);
  StepChoice choice = kSmallSteps;
  if (kSanitized) choice.batch = {3};
  const auto steps = preset_steps(small(GetParam().of, GetParam().format), choice).value();
  for (const PresetStep& step : steps) {
    for (const PresetCall& c : step.calls) {
      const auto instance = case_of(step, c).value().make(1);

      EXPECT_EQ(difference_from(c.call, *instance), "") << c.case_name << " of " << c.kernel();
      const CheckReport report = runner.run_checked(*instance);
      EXPECT_TRUE(report.passed) << c.case_name << " of " << c.kernel() << ": " << report.why;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         RecordedCases,
                         testing::Values(SmallPreset{"deepseek-r1-nvfp4", "nvfp4"},
                                         SmallPreset{"deepseek-v3-fp8", "fp8_block"},
                                         SmallPreset{"deepseek-v2-lite", "bf16"},
                                         SmallPreset{"deepseek-v2", "bf16"},
                                         SmallPreset{"deepseek-moe-16b", "bf16"},
                                         SmallPreset{"deepseek-v3.2", "fp8_block"},
                                         SmallPreset{"deepseek-v4-flash", "mxfp4"}),
                         [](const auto& param) {
                           std::string name(param.param.of);
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

/// Every kernel of the real presets is among those that the small ones check.
TEST(RecordedCases, OfTheSmallModelsReachEveryKernelOfThePresets) {
  std::set<std::string_view> checked;
  for (const auto& [of, format] :
       {SmallPreset{"deepseek-r1-nvfp4", "nvfp4"}, SmallPreset{"deepseek-v3-fp8", "fp8_block"},
        SmallPreset{"deepseek-v2-lite", "bf16"}, SmallPreset{"deepseek-v3.2", "fp8_block"},
        SmallPreset{"deepseek-v4-flash", "mxfp4"}}) {
    const auto steps = preset_steps(small(of, format), kSmallSteps).value();
    for (const PresetStep& step : steps)
      for (const PresetCall& c : step.calls)
        checked.insert(c.kernel());
  }
  for (std::string_view preset : kPresets)
    for (const PresetStep& step : steps_of(preset, {.kv_len = {1024, kLongContext}}))
      for (const PresetCall& c : step.calls)
        EXPECT_TRUE(checked.contains(c.kernel())) << c.kernel();
}

TEST(RecordedCall, ACaseThatDiffersSaysIn) {
  const PresetStep one = preset_steps(small("deepseek-v2-lite", "bf16"),
                                      {.phase = "decode", .batch = {1}, .kv_len = {64}})
                             .value()
                             .at(0);
  const PresetStep three = preset_steps(small("deepseek-v2-lite", "bf16"),
                                        {.phase = "decode", .batch = {3}, .kv_len = {64}})
                               .value()
                               .at(0);
  const auto instance = case_of(one, call_of(one, "model", "embed_tokens")).value().make(1);

  EXPECT_EQ(difference_from(call_of(three, "model", "embed_tokens").call, *instance),
            "operand ids is i32 [1], the recorded call has i32 [3]");
}

TEST(RecordedCall, OfAKernelWhoseCasesDoNotSayHowIsNotFound) {
  OpRecord record;
  record.kernel = "hadamard";

  const Status status = make_case_of_call(all_cases(), RecordedCall(record, {}), {}).status();

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "the cases of hadamard do not say how one is made of a call");
}

}  // namespace
}  // namespace fathom
