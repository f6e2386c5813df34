// What an engine promises of its requests, for models whose caches are of other kinds than MLA's.
#include <algorithm>

#include "fathom/models/synth.h"
#include "tests/support/engine_traces.h"
#include "tests/support/model_runner.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

struct Family {
  const char* model;     ///< of tests/golden, or "synth-" and a version
  int64_t block_size;    ///< rows of a page
  int64_t block_tokens;  ///< of a prefix hit
};

constexpr std::string_view kSynth = "synth-";

class EngineFamilies : public testing::TestWithParam<Family> {
 protected:
  EngineFamilies() {
    const std::string_view model = family_.model;
    if (!model.starts_with(kSynth)) {
      directory_ = str_cat(FATHOM_SOURCE_DIR "/tests/golden/", model);
      tokens_ = Golden(directory_ + "/golden.safetensors").ints("p3.input_ids");
      return;
    }
    directory_ = made_.path();
    SynthOptions options;
    options.version = model.substr(kSynth.size());
    options.layers = 2;
    options.hidden = 128;
    options.kv_heads = 2;
    const auto report = synthesize_checkpoint(directory_, options);
    FATHOM_CHECK(report.ok(), report.ok() ? "" : report.status().message());
    for (int32_t i = 0; i < 300; ++i)
      tokens_.push_back(3 + (i * i + 7 * i) % 256);
  }

  const Family& family_ = GetParam();
  TempDir made_;
  std::string directory_;
  std::vector<int32_t> tokens_;

  EngineOptions options() const {
    EngineOptions o;
    o.model = directory_;
    o.threads = 2;
    o.pin_threads = false;
    o.block_size = family_.block_size;
    o.attention_key_chunk = 64;
    o.max_model_len = 512;
    o.max_num_batched_tokens = 128;
    o.max_num_seqs = 4;
    o.batch_invariant = true;
    return o;
  }

  std::vector<int32_t> prompt(int64_t length, int64_t first) const {
    std::vector<int32_t> ids = tokens_;
    std::rotate(ids.begin(), ids.begin() + first, ids.end());
    ids.resize(static_cast<size_t>(length));
    return ids;
  }
};

TEST_P(EngineFamilies, ChunksPrefixHitsAndThreadsAreInvisible) {
  const auto ids = prompt(300, 11);
  const SamplingParams params = greedy(12);
  const Trace expected = run_alone(*load(options()), ids, params);
  for (int64_t chunk : {1, 7, 33, 100, 200, 300}) {
    EngineOptions o = options();
    o.prefill_chunk = chunk;
    o.max_num_batched_tokens = std::max<int64_t>(o.max_num_batched_tokens, chunk);
    EXPECT_EQ(run_alone(*load(o), ids, params), expected) << "chunk " << chunk;
  }
  EngineOptions one = options();
  one.threads = 1;
  EXPECT_EQ(run_alone(*load(one), ids, params), expected);

  const auto engine = load(options());
  for (int64_t length : {140, 270, 300}) {
    (void)run_alone(*engine, std::span(ids).first(static_cast<size_t>(length)), greedy(1));
    const Trace hit = run_alone(*engine, ids, params);
    const int64_t blocks = (length - 1) / family_.block_tokens;
    EXPECT_GE(hit.cached, blocks * family_.block_tokens) << "prefix of " << length;
    EXPECT_EQ(hit, expected) << "prefix of " << length;
  }
  EXPECT_GT(engine->stats().prefix.hit_tokens, 0);
}

TEST_P(EngineFamilies, NeighboursNeverChangeABit) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<SamplingParams> params;
  for (int32_t i = 0; i < 8; ++i) {
    prompts.push_back(prompt(1 + 37 * i, 17 * i));
    params.push_back(greedy(5 + 3 * i));
    if (i % 2 == 1) {
      params.back().temperature = 0.8f;
      params.back().seed = 7;
    }
  }
  const auto together = load(options());
  const auto traces = run_together(*together, prompts, params, Arrival::kOneAStep);

  const auto alone = load(options());
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(traces[i], run_alone(*alone, prompts[i], params[i])) << "request " << i;
}

// A request that is put aside loses its pages, its rings and its states, and comes back the same.
TEST_P(EngineFamilies, PreemptionLeavesNoTrace) {
  EngineOptions o = options();
  o.prefix_cache = false;
  o.max_model_len = 384;
  const auto roomy = load(o);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Trace> expected;
  for (int32_t i = 0; i < 4; ++i) {
    prompts.push_back(prompt(120, 40 * i));
    expected.push_back(run_alone(*roomy, prompts.back(), greedy(60)));
  }
  // Room for two of the four when they have grown.
  const int64_t blocks = 2 * (180 + family_.block_tokens - 1) / family_.block_tokens + 1;
  const auto traces = run_in_blocks(*roomy, blocks, prompts, greedy(60));
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(traces[i], expected[i]) << i;
}

// Guessed tokens change when a token comes, not which; what has no draft layer says so.
TEST(EngineFamilyV1, NgramDraftsAndTheDraftLayerIsRefused) {
  TempDir made;
  SynthOptions synth;
  synth.version = "v1";
  synth.layers = 2;
  synth.hidden = 128;
  ASSERT_TRUE(synthesize_checkpoint(made.path(), synth).ok());
  EngineOptions o;
  o.model = made.path();
  o.threads = 2;
  o.pin_threads = false;
  o.max_model_len = 256;
  o.batch_invariant = true;
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 60; ++i)
    prompt.push_back(3 + i % 5);
  const Trace expected = run_alone(*load(o), prompt, greedy(40));
  o.speculative = Speculative::kNgram;
  o.speculative_tokens = 3;
  EXPECT_EQ(run_alone(*load(o), prompt, greedy(40)), expected);

  o.speculative = Speculative::kMtp;
  const auto refused = Engine::load(o);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("--speculative mtp: this model has no draft layer"),
            std::string::npos)
      << refused.status().message();
}

INSTANTIATE_TEST_SUITE_P(Micro,
                         EngineFamilies,
                         testing::Values(Family{"micro-v32", 16, 16},
                                         Family{"micro-v4", 32, 128},
                                         Family{"synth-v1", 16, 16}),
                         [](const auto& p) {
                           std::string name = p.param.model;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace fathom
