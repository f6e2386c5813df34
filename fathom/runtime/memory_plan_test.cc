#include "fathom/runtime/memory_plan.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "fathom/models/config/presets.h"
#include "fathom/models/registry.h"
#include "fathom/text/figures.h"
#include "tests/support/fake_model.h"

namespace fathom {
namespace {

// 8 bytes a token: 2 layers of one float32.
constexpr int64_t kBytesPerToken = 8;

int64_t fixed_bytes(const FakeModel& model) {
  const Result<MemoryPlan> plan = plan_memory(model, {.num_ids = 40});
  return plan->step.activation_bytes + plan->step.scratch_bytes;
}

// A request for a machine with so much left for the cache (and its padding).
MemoryRequest with_room(const FakeModel& model, int64_t cache_bytes) {
  return {.num_ids = 40,
          .memory_fraction = 1.0,
          .available_bytes = fixed_bytes(model) + cache_bytes + 128};
}

TEST(MemoryPlan, ByRequestHoldsAllSequences) {
  const FakeModel model;
  MemoryRequest request{.max_model_len = 100, .max_num_seqs = 3, .num_ids = 40};

  const Result<MemoryPlan> plan = plan_memory(model, request);

  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->num_blocks, 3 * 25);
  EXPECT_EQ(plan->max_model_len, 100);
  EXPECT_GE(plan->cache_bytes, 300 * kBytesPerToken);
  EXPECT_GT(plan->step.activation_bytes, 0);
  EXPECT_FALSE(plan->lowered);
}

TEST(MemoryPlan, GivesWhatRemains) {
  const FakeModel model;
  MemoryRequest request = with_room(model, 1000 * kBytesPerToken);
  request.sizing = KvSizing::kRemaining;

  const Result<MemoryPlan> plan = plan_memory(model, request);

  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->num_blocks, 250);
  EXPECT_LE(plan->total_bytes(), plan->budget_bytes);
}

TEST(MemoryPlan, ByRequestTakesFewerPagesWhenMemoryIsShort) {
  const FakeModel model;
  MemoryRequest request = with_room(model, 300 * kBytesPerToken);
  request.max_model_len = 256;

  const Result<MemoryPlan> plan = plan_memory(model, request);

  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->num_blocks, 75);
  EXPECT_EQ(plan->max_model_len, 256);
}

TEST(MemoryPlan, LowersTheContextOnlyWhenTheUserDidNotAsk) {
  const FakeModel model;
  MemoryRequest request = with_room(model, 100 * kBytesPerToken);

  const Result<MemoryPlan> lowered = plan_memory(model, request);
  request.max_model_len = 256;
  const Result<MemoryPlan> asked = plan_memory(model, request);

  ASSERT_TRUE(lowered.ok());
  EXPECT_TRUE(lowered->lowered);
  EXPECT_EQ(lowered->max_model_len, 100);
  ASSERT_FALSE(asked.ok());
  EXPECT_EQ(asked.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(asked.status().message().find("--max-model-len"), std::string::npos);
  EXPECT_NE(asked.status().message().find(format_memory(request.available_bytes)),
            std::string::npos);
}

TEST(MemoryPlan, SaysWhenTheStepAloneIsTooLarge) {
  const FakeModel model;
  MemoryRequest request = with_room(model, 0);
  request.available_bytes = fixed_bytes(model) / 2;

  const Result<MemoryPlan> plan = plan_memory(model, request);

  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("--max-num-batched-tokens"), std::string::npos);
}

TEST(MemoryPlan, RefusesALengthBeyondTheModel) {
  const FakeModel model;

  EXPECT_TRUE(plan_memory(model, {.max_model_len = 256, .num_ids = 40}).ok());
  for (int64_t length : {int64_t{-1}, int64_t{257}, INT64_MAX}) {
    const Result<MemoryPlan> plan = plan_memory(model, {.max_model_len = length, .num_ids = 40});
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  }
}

// DeepSeek-R1 in NVFP4 on a laptop: refused for its weights, with both numbers.
TEST(MemoryPlan, RefusesR1OnASmallMachine) {
  const Result<Preset> preset = find_preset("deepseek-r1-nvfp4");
  ASSERT_TRUE(preset.ok());
  OpenOptions open;
  open.model.draft = false;
  open.weights = WeightOrigin::kNone;
  const auto model = open_model(ModelSource::describe(*preset), {}, open);
  ASSERT_TRUE(model.ok()) << model.status().message();
  MemoryRequest request{.max_model_len = 4096, .num_ids = 128'815, .num_threads = 2};
  const Result<MemoryPlan> unknown = plan_memory(**model, request);
  request.available_bytes = int64_t{16} << 30;

  const Result<MemoryPlan> plan = plan_memory(**model, request);

  ASSERT_TRUE(unknown.ok());
  EXPECT_GT(unknown->weight_bytes, 330ll << 30);
  EXPECT_EQ(unknown->cache.bytes_per_block(), 64 * 70'272);
  EXPECT_EQ(unknown->num_blocks, 8 * 64);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("16.00 GiB available"), std::string::npos);
  EXPECT_NE(plan.status().message().find("weights alone"), std::string::npos);
}

// Whole prompts of short sequences expand the keys of all their tokens at once.
TEST(MemoryPlan, HasRoomForAStepOfWholePrompts) {
  Result<Preset> preset = find_preset("deepseek-v2-lite");
  ASSERT_TRUE(preset.ok());
  ModelConfig& config = preset->config;
  config.hidden_size = 256;
  config.intermediate_size = 512;
  config.num_hidden_layers = 2;
  config.first_k_dense_replace = 2;
  OpenOptions open;
  open.weights = WeightOrigin::kNone;
  const auto model = open_model(ModelSource::describe(*preset), {}, open);
  ASSERT_TRUE(model.ok()) << model.status().message();

  for (const int64_t budget : {500, 512, 1024, 1500, 4096}) {
    for (const int64_t length : {7, 100, 250, 600}) {
      const auto plan = plan_memory(**model, {.max_model_len = length,
                                              .max_num_seqs = 8,
                                              .max_num_batched_tokens = budget,
                                              .num_ids = 40});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      for (int64_t count = 1; count <= 8; ++count) {
        BatchShape shape;
        shape.prefill = {
            .count = count, .new_tokens = std::min(length, budget / count), .cached = 0};
        const auto needs = dry_run(**model, shape);
        ASSERT_TRUE(needs.ok()) << needs.status().message();
        EXPECT_LE(needs->activation_bytes, plan->step.activation_bytes)
            << count << " prompts of " << shape.prefill.new_tokens << " tokens, " << budget
            << " a step";
        EXPECT_LE(needs->scratch_bytes, plan->step.scratch_bytes) << count << " prompts";
      }
    }
  }
}

TEST(MemoryPlan, TextNamesEveryRegion) {
  const FakeModel model;
  const Result<MemoryPlan> plan = plan_memory(model, with_room(model, 1 << 20));
  ASSERT_TRUE(plan.ok());

  const std::string text = plan->text();

  for (const char* word : {"weights", "activations", "scratch", "KV cache", "8 bytes per token",
                           "8 sequences of 256 tokens"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " in\n" << text;
  }
}

}  // namespace
}  // namespace fathom
