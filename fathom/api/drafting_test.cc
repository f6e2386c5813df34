// Drafting in whole engines on trained models: the same tokens, in fewer steps.
#include <algorithm>

#include "tests/support/engine_traces.h"

namespace fathom {
namespace {

const std::string kTinyV3 = FATHOM_SOURCE_DIR "/models/tiny-v3-nvfp4";

EngineOptions tale_options(const std::string& model) {
  EngineOptions o;
  o.model = model;
  o.threads = 2;
  o.pin_threads = false;
  o.block_size = 16;
  o.attention_key_chunk = 64;
  o.max_model_len = 512;
  o.max_num_batched_tokens = 96;
  o.max_num_seqs = 4;
  o.batch_invariant = true;
  o.seed = 7;
  return o;
}

EngineOptions drafting(EngineOptions o, Speculative method, int64_t tokens) {
  o.speculative = method;
  o.speculative_tokens = tokens;
  return o;
}

// Beginnings of tales, some with a word said again and again; the first two share a prefix.
std::vector<std::vector<int32_t>> tale_prompts(const Engine& engine) {
  const std::string song = "The king said to his son, my son, go out into the wide world. ";
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text :
       {song + song + "The king said", song + song + "The queen", std::string("Once upon a time"),
        std::string("There was once a poor woodcutter who"),
        std::string("one, two, three, one, two, three, one, two, three, one")})
    prompts.push_back(engine.tokenizer()->encode(text, {.add_bos = AddBos::kAsConfigured}));
  return prompts;
}

std::vector<SamplingParams> params_of_every_kind(size_t count, int64_t tokens) {
  std::vector<SamplingParams> params(count, greedy(tokens));
  for (size_t i = 0; i < count; ++i) {
    params[i].seed = 100 + i;
    if (i % 2 == 1) params[i].temperature = 0.7f;
    if (i % 3 == 2) params[i].top_p = 0.9f;
  }
  return params;
}

TEST(DraftingApi, NgramsChangeNoToken) {
  const auto plain = load(tale_options(kTinyV3));
  const auto prompts = tale_prompts(*plain);
  const auto params = params_of_every_kind(prompts.size(), 60);
  const auto expected = run_together(*plain, prompts, params, Arrival::kOneAStep);
  for (int64_t n = 1; n <= 5; ++n) {
    const auto engine = load(drafting(tale_options(kTinyV3), Speculative::kNgram, n));
    for (const Arrival arrival : {Arrival::kOneAStep, Arrival::kAtOnce}) {
      EXPECT_EQ(run_together(*engine, prompts, params, arrival), expected) << n << " drafts";
    }
    const CoreStats stats = engine->stats();
    EXPECT_GT(stats.accepted_tokens, 20) << n << " drafts";
    EXPECT_GT(stats.prefix.hit_tokens, 0);
  }
}

TEST(DraftingApi, PreemptedSequencesDraftOn) {
  const auto plain = load(tale_options(kTinyV3));
  const auto prompts = tale_prompts(*plain);
  const auto params = std::vector(prompts.size(), greedy(50));
  const auto expected = run_together(*plain, prompts, params, Arrival::kAtOnce);
  const auto engine = load(drafting(tale_options(kTinyV3), Speculative::kNgram, 3));

  EXPECT_EQ(run_in_blocks(*engine, 14, prompts, greedy(50)), expected);
}

TEST(DraftingApi, ModelsWithWindowsAndCompressorsDraftToo) {
  EngineOptions o = tale_options(FATHOM_SOURCE_DIR "/models/tiny-v4-nvfp4");
  o.block_size = 32;
  const auto plain = load(o);
  const auto prompts = tale_prompts(*plain);
  const auto params = params_of_every_kind(prompts.size(), 40);
  const auto expected = run_together(*plain, prompts, params, Arrival::kOneAStep);

  const auto engine = load(drafting(o, Speculative::kNgram, 4));

  EXPECT_EQ(run_together(*engine, prompts, params, Arrival::kOneAStep), expected);
  EXPECT_GT(engine->stats().accepted_tokens, 10);
}

}  // namespace
}  // namespace fathom
