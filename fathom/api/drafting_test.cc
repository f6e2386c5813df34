// Drafting in whole engines on trained models: the same tokens, in fewer steps.
#include <algorithm>
#include <filesystem>
#include <span>

#include "tests/support/draft_checkpoint.h"
#include "tests/support/engine_traces.h"
#include "tests/support/known_answers.h"
#include "tests/support/sanitized.h"
#include "tests/support/v4_checkpoint.h"

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
  for (int64_t n = 1; n <= 5; n += kSanitized ? 4 : 1) {
    const auto engine = load(drafting(tale_options(kTinyV3), Speculative::kNgram, n));
    const MonotonicClock clock;
    const auto core = always_drafting(*engine, clock);
    for (const Arrival arrival : {Arrival::kOneAStep, Arrival::kAtOnce}) {
      EXPECT_EQ(run_together(*core, prompts, params, arrival), expected) << n << " drafts";
    }
    const CoreStats stats = core->stats();
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

// Sliding windows and compressors; and an indexer, which chooses keys for each place by itself.
TEST(DraftingApi, ModelsOfOtherCachesDraftToo) {
  for (const auto& [model, block_size] :
       {std::pair{"/models/tiny-v4-nvfp4", 32}, {"/tests/golden/micro-v32", 16}}) {
    SCOPED_TRACE(model);
    EngineOptions o = tale_options(str_cat(FATHOM_SOURCE_DIR, model));
    o.block_size = block_size;
    const auto plain = load(o);
    const auto prompts = tale_prompts(*plain);
    const auto params = params_of_every_kind(prompts.size(), 40);
    const auto expected = run_together(*plain, prompts, params, Arrival::kOneAStep);
    const auto engine = load(drafting(o, Speculative::kNgram, 4));
    const MonotonicClock clock;
    KnownAnswers known(prompts, expected);
    for (Proposer* proposer : {static_cast<Proposer*>(&known), static_cast<Proposer*>(nullptr)}) {
      const auto core = always_drafting(*engine, clock, proposer);

      EXPECT_EQ(run_together(*core, prompts, params, Arrival::kOneAStep), expected);
      if (proposer == nullptr) continue;
      EXPECT_GT(core->stats().accepted_tokens, 60);
      EXPECT_GT(core->stats().drafted_tokens, core->stats().accepted_tokens);
    }
  }
}

TEST(DraftingApi, ADraftLayerThatIsNotThereIsRefused) {
  const auto refused = Engine::load(drafting(tale_options(kTinyV3), Speculative::kMtp, 2));

  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(refused.status().message().find("--speculative mtp: "), 0u);
}

EngineOptions drafting(EngineOptions o, const DraftShape& shape) {
  o = drafting(std::move(o), Speculative::kMtp, shape.tokens);
  o.speculative_topk = shape.branches;
  o.speculative_width = shape.width;
  return o;
}

// Under sanitizers the last of the shapes, and one dtype.
template <class T>
std::span<const T> last(std::span<const T> all, size_t count) {
  return kSanitized ? all.last(count) : all;
}

constexpr Format kDtypes[] = {Format::kF32, Format::kBf16};

// Chains of every length, and trees: narrow and wide, shallow and deep, whole and cut.
const DraftShape kShapes[] = {{.tokens = 1},
                              {.tokens = 2},
                              {.tokens = 3},
                              {.tokens = 4},
                              {.tokens = 1, .branches = 4},
                              {.tokens = 2, .branches = 3, .width = 12},
                              {.tokens = 3, .branches = 2},
                              {.tokens = 5},
                              {.tokens = 5, .branches = 4, .width = 9}};

std::string name_of(const DraftShape& s) {
  return str_cat(s.tokens, " deep, ", s.branches, " at a place, ", s.drafts(), " in all");
}

// Random weights guess badly: what is checked is that wrong rows and right ones leave no trace, the
// right ones of trees where the answers are known. The indexer of micro-v32 chooses among the keys
// of a node's own path.
class DraftLayers : public testing::TestWithParam<const char*> {};

TEST_P(DraftLayers, ChangeNoToken) {
  const DraftCheckpoint checkpoint(GetParam());
  EngineOptions o = tale_options(checkpoint.path());
  o.max_model_len = 256;
  for (const Format dtype : last<Format>(kDtypes, 1)) {
    o.dtype = dtype;
    const auto plain = load(o);
    const auto prompts = tale_prompts(*plain);
    const auto params = params_of_every_kind(prompts.size(), 40);
    const auto expected = run_together(*plain, prompts, params, Arrival::kOneAStep);
    for (const DraftShape& shape : last<DraftShape>(kShapes, 2)) {
      SCOPED_TRACE(name_of(shape));
      const auto engine = load(drafting(o, shape));
      ASSERT_TRUE(engine->model().has_draft());
      EXPECT_GT(engine->memory_plan().step.hidden_bytes, 0);
      const MonotonicClock clock;
      const auto core = always_drafting(*engine, clock);
      for (const Arrival arrival : {Arrival::kOneAStep, Arrival::kAtOnce}) {
        EXPECT_EQ(run_together(*core, prompts, params, arrival), expected);
      }
      EXPECT_GT(core->stats().drafted_tokens, 0);
      EXPECT_GT(core->stats().prefix.hit_tokens, 0);
      if (shape.drafts() < 4 || !shape.is_tree()) continue;
      KnownAnswers known(prompts, expected, KnownAnswers::Shape::kTrees);
      const auto right = always_drafting(*engine, clock, &known);
      EXPECT_EQ(run_together(*right, prompts, params, Arrival::kOneAStep), expected);
      EXPECT_GT(right->stats().accepted_tokens, 60);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DraftingApi, DraftLayers, testing::Values("micro-v3", "micro-v32"));

// With the vocabulary of that tokenizer.
struct V4WithTokenizer : V4Checkpoint {
  V4WithTokenizer() : V4Checkpoint([](const std::string& name) { return name; }, 4096) {}
};

EngineOptions v4_options(const V4Checkpoint& checkpoint) {
  EngineOptions o = tale_options(checkpoint.path());
  o.tokenizer = FATHOM_SOURCE_DIR "/tests/golden/micro-v4";
  o.block_size = 32;  // a block is 128 tokens, one row of as many
  o.attention_key_chunk = 128;
  o.max_model_len = 4096;
  return o;
}

std::vector<std::vector<int32_t>> v4_prompts(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t length : lengths) {
    prompts.emplace_back();
    for (int64_t i = 0; i < length; ++i)
      prompts.back().push_back(static_cast<int32_t>((7 * i + length) % 4096));
  }
  return prompts;
}

// Rings of windows and the state of compressors are cut back behind every wrong draft: of the main
// model, whose answers are known so that some drafts are right, and of the draft layer. Nodes of
// trees complete compressed rows and keys of their own, one beside the other, and those of a right
// path go to where plain decoding has them.
TEST(DraftingApi, TheDraftLayerOfWindowsAndCompressorsChangesNoToken) {
  const V4WithTokenizer checkpoint;
  EngineOptions o = v4_options(checkpoint);
  const DraftShape shapes[] = {{.tokens = 1},
                               {.tokens = 2},
                               {.tokens = 3},
                               {.tokens = 4},
                               {.tokens = 1, .branches = 4},
                               {.tokens = 2, .branches = 3, .width = 12},
                               {.tokens = 5, .branches = 4, .width = 16}};
  using Known = KnownAnswers::Shape;
  for (const Format dtype : last<Format>(kDtypes, 1)) {
    o.dtype = dtype;
    const auto plain = load(o);
    // Before, at and behind the ends of compressed rows of 4 and of 128 tokens.
    const auto prompts = v4_prompts({3, 9, 126, 140});
    const auto params = params_of_every_kind(prompts.size(), 50);
    const auto expected = run_together(*plain, prompts, params, Arrival::kOneAStep);
    for (const DraftShape& shape : last<DraftShape>(shapes, 1)) {
      SCOPED_TRACE(name_of(shape));
      const auto engine = load(drafting(o, shape));
      ASSERT_TRUE(engine->model().has_draft());
      const MonotonicClock clock;
      KnownAnswers chains(prompts, expected, shape.is_tree() ? Known::kTrees : Known::kChains);
      KnownAnswers bushes(prompts, expected, Known::kBushes);
      for (Proposer* proposer : {static_cast<Proposer*>(nullptr), static_cast<Proposer*>(&chains),
                                 static_cast<Proposer*>(&bushes)}) {
        if (proposer == &bushes && !shape.is_tree()) continue;
        const auto core = always_drafting(*engine, clock, proposer);
        for (const Arrival arrival : {Arrival::kOneAStep, Arrival::kAtOnce})
          EXPECT_EQ(run_together(*core, prompts, params, arrival), expected);
        EXPECT_GT(core->stats().drafted_tokens, core->stats().accepted_tokens);
        if (proposer != nullptr) {
          EXPECT_GT(core->stats().accepted_tokens, 60);
        }
      }
    }
  }
}

// Where blocks are short, trees are smaller, and sequences are put aside.
TEST(DraftingApi, TreesOfCompressedRowsInFewBlocks) {
  const V4WithTokenizer checkpoint;
  const EngineOptions o = v4_options(checkpoint);
  const auto plain = load(o);
  const auto prompts = v4_prompts({120, 121, 122, 123});
  const auto expected =
      run_together(*plain, prompts, std::vector(prompts.size(), greedy(50)), Arrival::kAtOnce);
  const auto engine = load(drafting(o, {.tokens = 3, .branches = 3, .width = 12}));

  EXPECT_EQ(run_in_blocks(*engine, 5, prompts, greedy(50)), expected);
}

TEST(DraftingApi, TreesBeyondTheSlackOfRingsAreRefused) {
  const V4WithTokenizer checkpoint;
  const EngineOptions o = v4_options(checkpoint);

  const auto refused = Engine::load(drafting(o, {.tokens = 6, .branches = 3}));

  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(refused.status().message(),
            "--speculative-tokens 6 and --speculative-topk 3 make trees of 18 drafts, but the "
            "caches of this model can be cut back by 16 tokens, expected --speculative-width of at "
            "most so many");
}

// The trained draft layer does not fit the tree: it lies beside it, or one folder up.
class TrainedDraftLayer : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* up : {"/..", "/../.."}) {
      directory_ = str_cat(FATHOM_SOURCE_DIR, up, "/shared/models/tiny-v3");
      if (std::filesystem::exists(directory_)) return;
    }
    GTEST_SKIP() << directory_ << " is not there";
  }

  std::string directory_;
};

TEST_F(TrainedDraftLayer, GuessesTalesAndChangesNoToken) {
  const char* const beginnings[] = {"Once upon a time there was a king who",
                                    "There was once a poor woodcutter who",
                                    "The princess went into the garden and",
                                    "Far away in the land to which the swallows fly",
                                    "A long time ago there lived a fisherman",
                                    "In the middle of the forest stood a little house"};
  const auto plain = load(tale_options(directory_));
  std::vector<std::vector<int32_t>> prompts;
  for (const char* text : beginnings)
    prompts.push_back(plain->tokenizer()->encode(text, {.add_bos = AddBos::kAsConfigured}));
  for (const float temperature : {0.0f, 0.8f}) {
    std::vector<SamplingParams> params(prompts.size(), greedy(100));
    for (size_t i = 0; i < params.size(); ++i) {
      params[i].temperature = temperature;
      params[i].seed = i;
    }
    const auto expected = run_together(*plain, prompts, params, Arrival::kOneAStep);
    for (const DraftShape& shape : last<DraftShape>(kShapes, 2)) {
      SCOPED_TRACE(name_of(shape));
      const auto engine = load(drafting(tale_options(directory_), shape));
      const MonotonicClock clock;
      const auto core = always_drafting(*engine, clock);
      EXPECT_EQ(run_together(*core, prompts, params, Arrival::kOneAStep), expected);
      const CoreStats stats = core->stats();
      const double first =
          static_cast<double>(stats.accepted_at[0]) / static_cast<double>(stats.num_drafts);
      if (temperature == 0) {
        EXPECT_GE(first, shape.is_tree() ? 0.6 : 0.52);
      }
    }
  }
}

}  // namespace
}  // namespace fathom
