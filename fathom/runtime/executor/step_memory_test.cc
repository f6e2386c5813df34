// The plan of a step's memory against every step that a sequence can go through.
#include "fathom/runtime/executor/step_memory.h"

#include <gtest/gtest.h>
#include <map>
#include <utility>

#include "fathom/base/rng.h"
#include "fathom/device/described_gpu.h"
#include "fathom/models/registry.h"
#include "fathom/runtime/executor/decode_shapes.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

// R1's attention in two narrow layers, one dense and one with experts: nothing else of a pass
// depends on where a prompt is cut.
std::unique_ptr<Model> r1_attention(int64_t key_chunk, int64_t block) {
  Preset preset = std::move(find_preset("deepseek-r1-nvfp4")).value();
  ModelConfig& c = preset.config;
  c.num_hidden_layers = 2;
  c.first_k_dense_replace = 1;
  c.hidden_size = 256;
  c.intermediate_size = 512;
  c.moe_intermediate_size = 256;
  c.n_routed_experts = 8;
  c.n_group = 1;
  c.topk_group = 1;
  OpenOptions open;
  open.weights = WeightOrigin::kNone;
  open.model.page_size = block;
  open.model.attention.prefill_chunk = key_chunk;
  return std::move(open_model(ModelSource::describe(preset), {}, open)).value();
}

// V4's attention in four layers, two of them with a window alone: rows of a long prompt stand side
// by side in the memory of a step.
std::unique_ptr<Model> v4_attention() {
  Preset preset = std::move(find_preset("deepseek-v4-flash")).value();
  preset.config = first_layers(preset.config, 4);
  ModelConfig& c = preset.config;
  c.hidden_size = 256;
  c.num_attention_heads = 8;
  c.vocab_size = 1024;  // rows of logits would hide what rows of tokens take
  c.q_lora_rank = 256;
  c.o_lora_rank = 64;
  c.index_topk = 64;
  c.index_n_heads = 4;
  c.moe_intermediate_size = 256;
  c.n_routed_experts = 8;
  OpenOptions open;
  open.weights = WeightOrigin::kNone;
  return std::move(open_model(ModelSource::describe(preset), {}, open)).value();
}

constexpr int kThreads = 2;

// High-water marks of a prompt's part of `count` tokens that ends at `end`, made once each.
class Steps {
 public:
  explicit Steps(const Model& model) : model_(model) {}

  const MemoryNeeds& prompt(int64_t count, int64_t end) {
    const auto [entry, made] = known_.try_emplace({count, end});
    if (made) {
      BatchShape shape;
      shape.prefill = {.count = 1, .new_tokens = count, .cached = end - count};
      entry->second =
          dry_run(model_, shape, {.num_threads = kThreads, .kernels = &cpu_kernels()}).value();
    }
    return entry->second;
  }

 private:
  const Model& model_;
  std::map<std::pair<int64_t, int64_t>, MemoryNeeds> known_;
};

// Each part of a prompt of `length` tokens of which `cached` were found, cut by the token budget.
testing::AssertionResult fits(
    Steps& steps, const MemoryNeeds& plan, int64_t cached, int64_t length, int64_t budget) {
  for (int64_t begin = cached; begin < length; begin += budget) {
    const int64_t count = std::min(budget, length - begin);
    const MemoryNeeds& needs = steps.prompt(count, begin + count);
    if (needs.activation_bytes <= plan.activation_bytes &&
        needs.scratch_bytes <= plan.scratch_bytes) {
      continue;
    }
    return testing::AssertionFailure()
           << count << " tokens up to " << begin + count << " of " << length << " take "
           << needs.activation_bytes << " and " << needs.scratch_bytes << " bytes, planned are "
           << plan.activation_bytes << " and " << plan.scratch_bytes;
  }
  return testing::AssertionSuccess();
}

class EveryLength : public testing::TestWithParam<int64_t> {};

// With a chunk of C keys the failing lengths were 2C to 2C + 512: a part of a prompt that ends on a
// multiple of C merges all its queries beside a whole chunk of keys.
TEST_P(EveryLength, OfAPromptFitsThePlanForIt) {
  const int64_t chunk = GetParam();
  const int64_t block = std::min<int64_t>(chunk, 64);
  constexpr int64_t kBudget = 512;
  const auto model = r1_attention(chunk, block);
  Steps steps(*model);
  Rng rng(7);
  for (int64_t length = 1; length <= 4 * chunk + 600; ++length) {
    const StepShape shape{.max_num_seqs = 1,
                          .max_num_batched_tokens = kBudget,
                          .max_model_len = length,
                          .num_ids = 1000,
                          .num_threads = kThreads,
                          .kernels = &cpu_kernels()};
    const MemoryNeeds plan = step_memory(*model, shape).value();

    ASSERT_TRUE(fits(steps, plan, 0, length, kBudget)) << "nothing cached";
    const int64_t blocks = (length - 1) / block;
    if (blocks == 0) continue;
    const int64_t cached = (1 + rng.next_below(static_cast<uint32_t>(blocks))) * block;
    ASSERT_TRUE(fits(steps, plan, cached, length, kBudget)) << cached << " tokens cached";
  }
}

#ifdef FATHOM_SANITIZED
INSTANTIATE_TEST_SUITE_P(Chunks, EveryLength, testing::Values(64));
#else
INSTANTIATE_TEST_SUITE_P(Chunks, EveryLength, testing::Values(64, 128, 1024, 4096));
#endif

// Mixed steps of several sequences at random, with drafts and without. `gpu`: null, or that the
// decode range is padded as for one, and that work beside other work keeps its memory; scratch is
// the CPU's all the same.
void expect_room_for_steps_of_every_kind(const Model& model, const DeviceInfo* gpu) {
  Rng rng(3);
  for (int world = 0; world < 40; ++world) {
    StepShape shape{.max_num_seqs = 1 + rng.next_below(8),
                    .max_model_len = 1 + rng.next_below(900),
                    .num_ids = 1000,
                    .num_threads = kThreads,
                    .kernels = &cpu_kernels(),
                    .gpu = gpu};
    shape.max_queries = 1 + rng.next_below(3);
    shape.max_num_batched_tokens = shape.max_num_seqs * shape.max_queries + rng.next_below(700);
    const MemoryNeeds plan = step_memory(model, shape).value();
    for (int i = 0; i < 40; ++i) {
      // Decoding sequences and two groups of prompts within the budget.
      BatchShape step;
      const int64_t queries =
          1 +
          rng.next_below(static_cast<uint32_t>(std::min(shape.max_queries, shape.max_model_len)));
      const int64_t decodes = rng.next_below(static_cast<uint32_t>(shape.max_num_seqs) + 1);
      int64_t left = shape.max_num_batched_tokens - decodes * queries;
      int64_t seqs = shape.max_num_seqs - decodes;
      if (decodes > 0) {
        const auto room = static_cast<uint32_t>(shape.max_model_len - queries + 1);
        step.decode = {.count = decodes, .new_tokens = queries, .cached = rng.next_below(room)};
      }
      for (BatchShape::Requests* prompts : {&step.prefill, &step.more_prefill}) {
        if (left < 1 || seqs < 1) break;
        const int64_t most = std::min(left, shape.max_model_len);
        const int64_t tokens = 1 + rng.next_below(static_cast<uint32_t>(most));
        const int64_t count =
            1 + rng.next_below(static_cast<uint32_t>(std::min(seqs, left / tokens)));
        const auto room = static_cast<uint32_t>(shape.max_model_len - tokens + 1);
        *prompts = {.count = count,
                    .new_tokens = tokens,
                    .cached = rng.next_below(2) == 0 ? 0 : rng.next_below(room)};
        left -= count * tokens;
        seqs -= count;
      }
      if (step.prefill.count + step.decode.count == 0) continue;

      if (gpu != nullptr && decodes > 0) {
        const int64_t pages = model.cache_layout().blocks_for(step.decode.cached + queries);
        step.padding = {.requests = decode_bucket(decodes), .pages = pages};
      }

      const MemoryNeeds needs =
          dry_run(model, step, {.num_threads = kThreads, .kernels = &cpu_kernels(), .gpu = gpu})
              .value();

      ASSERT_LE(needs.activation_bytes, plan.activation_bytes)
          << "world " << world << ": " << step.prefill.count << " x " << step.prefill.new_tokens
          << " behind " << step.prefill.cached << ", " << step.more_prefill.count << " x "
          << step.more_prefill.new_tokens << " behind " << step.more_prefill.cached << ", "
          << decodes << " x " << queries << " behind " << step.decode.cached << "; "
          << shape.max_num_seqs << " sequences of " << shape.max_model_len << ", "
          << shape.max_num_batched_tokens << " a step";
      ASSERT_LE(needs.scratch_bytes, plan.scratch_bytes);
    }
  }
}

TEST(StepMemory, HasRoomForStepsOfEveryKind) {
  expect_room_for_steps_of_every_kind(*r1_attention(128, 64), nullptr);
}

TEST(StepMemory, HasRoomForRowsThatStandSideBySide) {
  expect_room_for_steps_of_every_kind(*v4_attention(), nullptr);
}

TEST(StepMemory, HasRoomForThemBesidePaddedDecode) {
  const DeviceInfo gpu = described_gpu("h100").value();
  const auto model = v4_attention();
  expect_room_for_steps_of_every_kind(*model, &gpu);

  // The whole budget in a prompt but for three sequences that decode, and the padding of those.
  const StepShape shape{.max_num_seqs = 8,
                        .max_num_batched_tokens = 700,
                        .max_model_len = 900,
                        .num_ids = 1000,
                        .num_threads = kThreads,
                        .kernels = &cpu_kernels(),
                        .gpu = &gpu};
  BatchShape step;
  step.prefill = {.count = 1, .new_tokens = 697, .cached = 203};
  step.decode = {.count = 3, .new_tokens = 1, .cached = 899};
  step.padding = {.requests = decode_bucket(3), .pages = model->cache_layout().blocks_for(900)};
  const MemoryNeeds needs =
      dry_run(*model, step, {.num_threads = kThreads, .kernels = &cpu_kernels()}).value();
  EXPECT_LE(needs.activation_bytes, step_memory(*model, shape).value().activation_bytes);
}

}  // namespace
}  // namespace fathom
