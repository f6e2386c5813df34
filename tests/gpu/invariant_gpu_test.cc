// --batch-invariant on a GPU: a token's bits follow from its own tokens alone, however its prompt
// was cut, whatever ran beside it, and whether it was prefilled, decoded or guessed. Part of
// engine_gpu_test.
#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "fathom/api/engine.h"
#include "fathom/base/rng.h"
#include "fathom/models/synth.h"
#include "fathom/runtime/forward_session.h"
#include "tests/gpu/gpu_test_tree.h"
#include "tests/support/draft_checkpoint.h"
#include "tests/support/engine_traces.h"
#include "tests/support/known_answers.h"
#include "tests/support/v4_checkpoint.h"

namespace fathom {
namespace {

EngineOptions invariant_options(const std::string& model) {
  EngineOptions o;
  o.model = model;
  EXPECT_TRUE(set_option(o, "device", "cuda").ok());
  o.threads = 4;
  o.pin_threads = false;
  o.batch_invariant = true;
  o.max_model_len = 320;
  o.max_num_seqs = 8;
  o.seed = 7;
  return o;
}

/// A model of the tree, a preset, or the version of a synthetic one; and an option.
struct Subject {
  std::string_view model;
  Format weights = Format::kNone;  ///< of a synthetic one
  const char* option = "block-size";
  const char* value = "64";

  bool is_preset() const { return model.starts_with("deepseek-"); }

  friend void PrintTo(const Subject& s, std::ostream* out) {
    *out << s.model << " " << format_name(s.weights) << " " << s.option << " " << s.value;
  }
};

class Invariant : public testing::TestWithParam<Subject> {
 protected:
  EngineOptions options() {
    const Subject& s = GetParam();
    EngineOptions o = invariant_options(str_cat(gpu_test_tree(), "/", s.model));
    if (s.is_preset()) {
      o.model.clear();
      o.preset = s.model;
      o.layers = 4;
      o.dummy_weights = true;
    } else if (s.weights != Format::kNone) {
      const SynthOptions synth{
          .version = std::string(s.model), .layers = 4, .hidden = 128, .format = s.weights};
      EXPECT_TRUE(synthesize_checkpoint(dir_.path(), synth).ok());
      o.model = dir_.path();
    }
    EXPECT_TRUE(set_option(o, s.option, s.value).ok());
    return o;
  }

  TempDir dir_;
};

std::vector<int32_t> some_ids(int64_t count, int64_t vocabulary, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(rng.next_below(static_cast<uint32_t>(vocabulary - 4)) + 4));
  return ids;
}

std::unique_ptr<ForwardSession> session_of(const Engine& engine, int64_t sequences, int64_t chunk) {
  auto session = ForwardSession::create(engine.model(), engine.machine().compute(),
                                        {.max_tokens = 320,
                                         .chunk = chunk,
                                         .sequences = sequences,
                                         .prefill_logits = LogitRows::kAll});
  FATHOM_CHECK(session.ok(), session.ok() ? "" : session.status().message());
  return std::move(session).value();
}

/// Rows of logits as bits.
using Rows = std::vector<std::vector<uint32_t>>;

void add_rows(const View& logits, Rows& rows) {
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    const auto* row = logits.row<const uint32_t>(r);
    rows.emplace_back(row, row + logits.dim(1));
  }
}

void prefill(ForwardSession& session, int64_t sequence, std::span<const int32_t> ids, Rows& rows) {
  const Status done =
      session.prefill(sequence, ids, LogitRows::kAll, [&](int64_t, const StepResults& out) {
        add_rows(out.logits, rows);
        return Status{};
      });
  ASSERT_TRUE(done.ok()) << done.message();
}

/// The first position whose bits differ, or -1.
int64_t first_other(const Rows& a, const Rows& b) {
  if (a.size() != b.size()) return 0;
  const auto at = std::ranges::mismatch(a, b).in1;
  return at == a.end() ? -1 : at - a.begin();
}

TEST_P(Invariant, PromptsHaveTheirBitsWholeInChunksAndTokenByToken) {
  const auto engine = load(options());
  const std::vector<int32_t> ids = some_ids(200, engine->model().config().vocab_size, 3);
  Rows whole;
  prefill(*session_of(*engine, 1, 512), 0, ids, whole);
  ASSERT_EQ(whole.size(), ids.size());
  for (const int64_t chunk : {1, 7, 64, 130}) {
    Rows rows;
    prefill(*session_of(*engine, 1, chunk), 0, ids, rows);
    EXPECT_EQ(first_other(whole, rows), -1) << "chunks of " << chunk;
  }
  Rows rows;
  const auto session = session_of(*engine, 1, 512);
  prefill(*session, 0, std::span(ids).first(9), rows);
  for (const int32_t id : std::span(ids).subspan(9)) {
    const auto logits = session->decode(std::span(&id, 1));
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    add_rows(*logits, rows);
  }
  EXPECT_EQ(first_other(whole, rows), -1) << "decoded";
}

TEST_P(Invariant, ASequenceHasItsBitsAloneAndAmongSevenOthers) {
  constexpr int64_t kSteps = 24;
  const auto engine = load(options());
  const int64_t vocabulary = engine->model().config().vocab_size;
  const auto run = [&](int64_t sequences) {
    const auto session = session_of(*engine, sequences, 512);
    Rows of_first;
    Rows others;
    for (int64_t s = 0; s < sequences; ++s)
      prefill(*session, s, some_ids(40 + 29 * s, vocabulary, static_cast<uint64_t>(s)),
              s == 0 ? of_first : others);
    for (int64_t i = 0; i < kSteps; ++i) {
      std::vector<int32_t> tokens = some_ids(8, vocabulary, 100 + static_cast<uint64_t>(i));
      tokens.resize(static_cast<size_t>(sequences));
      Rows rows;
      const auto logits = session->decode(tokens);
      EXPECT_TRUE(logits.ok()) << logits.status().message();
      if (logits.ok()) add_rows(*logits, rows);
      if (!rows.empty()) of_first.push_back(rows.front());
    }
    return of_first;
  };

  const Rows alone = run(1);

  EXPECT_EQ(alone.size(), 40u + kSteps);
  EXPECT_EQ(first_other(alone, run(8)), -1);
  EXPECT_EQ(first_other(alone, run(3)), -1);
}

/// Prompts of several lengths; the first two share a prefix of pages.
std::vector<std::vector<int32_t>> prompts_of(const Engine& engine) {
  const int64_t vocabulary = engine.core().settings().plan.shape.num_ids;  // of the tokenizer
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t length : {150, 140, 5, 33, 64}) {
    prompts.push_back(some_ids(length, vocabulary, static_cast<uint64_t>(length)));
    if (prompts.size() == 2) std::copy_n(prompts[0].begin(), 130, prompts[1].begin());
  }
  return prompts;
}

std::vector<Trace> answers_of(Engine& engine, const std::vector<std::vector<int32_t>>& prompts) {
  return run_together(engine, prompts, std::vector(prompts.size(), greedy(70)), Arrival::kOneAStep);
}

/// That an engine which drafts so gives these answers, all drafts right or as its own guesses are.
void expect_answers(const EngineOptions& o,
                    const std::vector<std::vector<int32_t>>& prompts,
                    const std::vector<Trace>& expected,
                    bool known_drafts) {
  const auto engine = load(o);
  const MonotonicClock clock;
  using Known = KnownAnswers::Shape;
  KnownAnswers known(prompts, expected, o.speculative_topk > 1 ? Known::kBushes : Known::kChains);
  const auto core = always_drafting(*engine, clock, known_drafts ? &known : nullptr);
  const std::vector<SamplingParams> params(prompts.size(), greedy(70));
  for (const Arrival arrival : {Arrival::kOneAStep, Arrival::kAtOnce})
    EXPECT_EQ(run_together(*core, prompts, params, arrival), expected);
  if (known_drafts || o.speculative == Speculative::kMtp) {
    EXPECT_GT(core->stats().drafted_tokens, 0);
  }
  if (known_drafts) {
    EXPECT_GT(core->stats().accepted_tokens, 100);
  }
}

// Models of real sizes take long to fill: of them one number of drafts.
TEST_P(Invariant, NgramsAndRightDraftsChangeNoTokenAndNoLogProbability) {
  const bool is_large = GetParam().is_preset();
  EngineOptions o = options();
  o.max_num_batched_tokens = 96;  // prompts come in chunks
  auto plain = load(o);
  const auto prompts = prompts_of(*plain);
  const std::vector<Trace> expected = answers_of(*plain, prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(run_alone(*plain, prompts[i], greedy(70)), expected[i]) << "prompt " << i;
  }
  plain.reset();
  o.speculative = Speculative::kNgram;
  for (const int64_t n : is_large ? std::vector<int64_t>{3} : std::vector<int64_t>{1, 2, 3, 4, 5}) {
    SCOPED_TRACE(str_cat(n, " drafts"));
    o.speculative_tokens = n;
    expect_answers(o, prompts, expected, true);
  }
  if (!is_large) expect_answers(o, prompts, expected, false);
}

constexpr const char* kTinyV3 = "models/tiny-v3-nvfp4";
constexpr const char* kTinyV4 = "models/tiny-v4-nvfp4";
constexpr const char* kKv = "kv-cache-dtype";
constexpr const char* kFp8 = "fp8_e4m3";

// Presets have layers of the real sizes, whose attention and products take other variants.
INSTANTIATE_TEST_SUITE_P(Engine,
                         Invariant,
                         testing::Values(Subject{kTinyV3},
                                         Subject{kTinyV3, Format::kNone, kKv, kFp8},
                                         Subject{kTinyV3, Format::kNone, "moe", "sorted"},
                                         Subject{kTinyV4},
                                         Subject{kTinyV4, Format::kNone, kKv, kFp8},
                                         Subject{kTinyV4, Format::kNone, kKv, "nvfp4"},
                                         Subject{"v2-lite", Format::kBf16},
                                         Subject{"v2", Format::kBf16},
                                         Subject{"tests/golden/micro-v3"},
                                         Subject{"tests/golden/micro-v32"},
                                         Subject{"tests/golden/micro-v4"},
                                         Subject{"v1", Format::kBf16},
                                         Subject{"v3", Format::kFp8Block},
                                         Subject{"v3", Format::kNvfp4},
                                         Subject{"v3.2", Format::kFp8Block, kKv, kFp8},
                                         Subject{"v4", Format::kMxfp4},
                                         Subject{"v4", Format::kFp8Block},
                                         Subject{"deepseek-v2-lite"},
                                         Subject{"deepseek-r1-nvfp4"},
                                         Subject{"deepseek-v3.2", Format::kNone, kKv, kFp8},
                                         Subject{"deepseek-v4-flash", Format::kNone, kKv, kFp8}));

/// Chains of every length and trees, by a draft layer.
void expect_same_with_draft_layer(EngineOptions o) {
  o.max_num_batched_tokens = 96;
  const auto plain = load(o);
  const auto prompts = prompts_of(*plain);
  const std::vector<Trace> expected = answers_of(*plain, prompts);
  o.speculative = Speculative::kMtp;
  for (const int64_t n : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(str_cat(n, " drafts"));
    o.speculative_tokens = n;
    expect_answers(o, prompts, expected, false);
    expect_answers(o, prompts, expected, true);
  }
  for (const auto& [deep, branches, width] :
       {std::array{1, 4, 0}, {3, 2, 0}, {5, 4, 9}, {5, 4, 16}}) {
    SCOPED_TRACE(str_cat(deep, " deep, ", branches, " at a place"));
    o.speculative_tokens = deep;
    o.speculative_topk = branches;
    o.speculative_width = width;
    expect_answers(o, prompts, expected, false);
    if (width > 0) expect_answers(o, prompts, expected, true);
  }
}

TEST(InvariantDrafts, DraftLayersChangeNothing) {
  for (const char* model : {"micro-v3", "micro-v32"}) {
    SCOPED_TRACE(model);
    const DraftCheckpoint checkpoint(model, gpu_test_tree());
    expect_same_with_draft_layer(invariant_options(checkpoint.path()));
  }
  const V4Checkpoint checkpoint([](const std::string& name) { return name; }, 4096);
  EngineOptions o = invariant_options(checkpoint.path());
  o.tokenizer = gpu_test_tree() + "/tests/golden/micro-v4";
  o.block_size = 32;  // rows of 128 tokens are one a page
  o.max_model_len = 4096;
  expect_same_with_draft_layer(o);
}

}  // namespace
}  // namespace fathom
