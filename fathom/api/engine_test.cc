#include "fathom/api/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/kernels/core/kernel_set/kernel_set.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "tests/support/cpu_kernels.h"
#include "tests/support/engine_traces.h"

namespace fathom {
namespace {

const std::string kModel = FATHOM_SOURCE_DIR "/tests/golden/micro-v3";

EngineOptions small_options() {
  EngineOptions o;
  o.model = kModel;
  o.threads = 2;
  o.pin_threads = false;
  o.block_size = 16;
  o.attention_key_chunk = 64;
  o.max_model_len = 256;
  o.max_num_batched_tokens = 128;
  return o;
}

// Tensor of golden.safetensors; T is its element type.
template <class T>
std::vector<T> golden(const std::string& name) {
  const auto file = Checkpoint::open_file(kModel + "/golden.safetensors");
  FATHOM_CHECK(file.ok(), "golden file");
  const auto tensor = file->get(name);
  FATHOM_CHECK(tensor.ok(), name);
  std::vector<std::byte> bytes(static_cast<size_t>((*tensor)->entry.bytes()));
  FATHOM_CHECK(file->read(**tensor, bytes).ok(), name);
  std::vector<T> values;
  if ((*tensor)->entry.dtype == Format::kI64) {
    for (size_t i = 0; i < bytes.size(); i += 8) {
      int64_t v = 0;
      std::memcpy(&v, &bytes[i], 8);
      values.push_back(static_cast<T>(v));
    }
  } else {
    values.resize(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return values;
}

std::vector<int32_t> golden_prompt(int k) {
  return golden<int32_t>(str_cat("p", k, ".input_ids"));
}

std::vector<int32_t> some_prompt(int64_t length, int32_t first) {
  std::vector<int32_t> ids = golden_prompt(3);
  std::rotate(ids.begin(), ids.begin() + first, ids.end());
  ids.resize(static_cast<size_t>(length));
  return ids;
}

TEST(EngineApi, GreedyTokensAreThoseOfTheReference) {
  EngineOptions o = small_options();
  o.dtype = Format::kF32;
  o.max_model_len = 512;
  const auto engine = load(o);
  for (int k = 0; k < 4; ++k) {
    const auto expected = golden<int32_t>(str_cat("p", k, ".greedy_ids"));
    const auto gaps = golden<float>(str_cat("p", k, ".greedy_gap"));
    // Beyond the first near tie another rounding may choose otherwise.
    const auto sure = static_cast<size_t>(
        std::ranges::find_if(gaps, [](float g) { return g < 1e-3f; }) - gaps.begin());

    const Trace t = run_alone(*engine, golden_prompt(k), greedy(64));

    ASSERT_EQ(t.tokens.size(), 64u);
    EXPECT_GT(sure, 8u);
    EXPECT_TRUE(std::equal(t.tokens.begin(), t.tokens.begin() + static_cast<int64_t>(sure),
                           expected.begin()))
        << "prompt " << k;
  }
}

TEST(EngineApi, ScoresAreThoseOfTheReference) {
  EngineOptions o = small_options();
  o.dtype = Format::kF32;
  const auto engine = load(o);
  const auto ids = golden_prompt(1);
  const auto logits = golden<float>("p1.logits");
  const size_t width = logits.size() / ids.size();
  size_t rows = 0;

  const Status status =
      engine->score(ids, [&](int64_t position, std::span<const float> row) -> Status {
        EXPECT_EQ(position, static_cast<int64_t>(rows));
        EXPECT_EQ(row.size(), width);
        for (size_t v = 0; v < width; ++v)
          EXPECT_NEAR(row[v], logits[rows * width + v], 2e-3);
        ++rows;
        return {};
      });

  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(rows, ids.size());
}

TEST(EngineApi, ScoresComeInOrderAcrossChunks) {
  const auto engine = load(small_options());
  const auto ids = some_prompt(150, 5);

  const auto nll = engine->token_nll(ids);

  ASSERT_TRUE(nll.ok()) << nll.status().message();
  ASSERT_EQ(nll->size(), ids.size() - 1);
  // The answer's log-probability of a token is the negative of its score, to the rounding of two
  // attention forms in bf16 activations; prefill alone has the same form.
  const auto first = run_alone(*engine, std::span(ids).first(100), greedy(1));
  std::vector<int32_t> extended(ids.begin(), ids.begin() + 100);
  extended.push_back(first.tokens[0]);
  const auto again = engine->token_nll(extended);
  ASSERT_TRUE(again.ok());
  EXPECT_NEAR(again->back(), -first.logprobs[0], 1e-5);
}

TEST(EngineApi, ScoreRefusesWhatItCannotScore) {
  const auto engine = load(small_options());
  const auto nothing = [](int64_t, std::span<const float>) { return Status{}; };
  const std::vector<int32_t> bad = {5, -1};
  const std::vector<int32_t> wide = {1'000'000};
  const std::vector<int32_t> good = {5, 6, 7};
  int calls = 0;

  EXPECT_EQ(engine->score({}, nothing).code(), StatusCode::kInvalidArgument);
  EXPECT_NE(engine->score(bad, nothing).message().find("ids[1] is -1"), std::string::npos);
  EXPECT_FALSE(engine->score(wide, nothing).ok());
  const Status stopped = engine->score(good, [&](int64_t, std::span<const float>) -> Status {
    ++calls;
    return cancelled("enough");
  });
  EXPECT_EQ(stopped.code(), StatusCode::kCancelled);
  EXPECT_EQ(calls, 1);
}

// R16: whole or in chunks, cold or from the cache, with one thread or two: the same bits.
TEST(EngineApi, ChunksPrefixHitsAndThreadsAreInvisible) {
  const auto prompt = some_prompt(100, 11);
  const SamplingParams params = greedy(12);
  const Trace expected = run_alone(*load(small_options()), prompt, params);
  for (int64_t chunk : {1, 7, 16, 33}) {
    EngineOptions o = small_options();
    o.prefill_chunk = chunk;
    EXPECT_EQ(run_alone(*load(o), prompt, params), expected) << "chunk " << chunk;
  }
  EngineOptions one = small_options();
  one.threads = 1;
  EXPECT_EQ(run_alone(*load(one), prompt, params), expected);

  const auto engine = load(small_options());
  for (int64_t length : {20, 40, 100}) {
    (void)run_alone(*engine, std::span(prompt).first(static_cast<size_t>(length)), greedy(1));
    const Trace hit = run_alone(*engine, prompt, params);
    EXPECT_GE(hit.cached, length / 16 * 16 - 16);
    EXPECT_EQ(hit, expected) << "prefix of " << length;
  }
  EXPECT_GT(engine->stats().prefix.hit_tokens, 0);
}

// R6 and R15: every request alone and among seven others that come and go.
TEST(EngineApi, NeighboursNeverChangeABit) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<SamplingParams> params;
  for (int32_t i = 0; i < 8; ++i) {
    prompts.push_back(some_prompt(1 + 13 * i, 17 * i));
    params.push_back(greedy(5 + 3 * i));
    if (i % 2 == 1) {
      params.back().temperature = 0.8f;
      params.back().top_p = 0.9f;
      params.back().seed = 7;
    }
  }
  const auto together = load(small_options());
  const auto traces = run_together(*together, prompts, params, Arrival::kOneAStep);

  const auto alone = load(small_options());
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(traces[i], run_alone(*alone, prompts[i], params[i])) << "request " << i;
  }
}

// In one attention form decoded pages are shared, and preemption leaves no trace either.
TEST(EngineApi, BatchInvariantModeHidesPreemptionAndDecodedPages) {
  EngineOptions o = small_options();
  o.batch_invariant = true;
  const auto roomy = load(o);
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 4; ++i)
    prompts.push_back(some_prompt(30, 40 * i));
  std::vector<Trace> expected;
  for (const auto& prompt : prompts)
    expected.push_back(run_alone(*roomy, prompt, greedy(60)));

  // A second turn on top of the first answer finds the pages that were decoded.
  std::vector<int32_t> turn = prompts[0];
  turn.insert(turn.end(), expected[0].tokens.begin(), expected[0].tokens.end());
  const Trace hit = run_alone(*roomy, turn, greedy(10));
  EXPECT_GE(hit.cached, 80);
  EngineOptions cold = o;
  cold.prefix_cache = false;
  EXPECT_EQ(hit, run_alone(*load(cold), turn, greedy(10)));

  // Four requests of 90 tokens in a pool for two.
  EngineOptions tight = cold;
  tight.max_model_len = 96;
  tight.max_num_seqs = 4;
  const auto reference = load(tight);
  const auto traces = run_in_blocks(*reference, 12, prompts, greedy(60));
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(traces[i], expected[i]) << i;
}

TEST(EngineApi, TextGoesInAndComesOut) {
  const auto engine = load(small_options());
  std::string streamed;
  SamplingParams params = greedy(20);

  const auto done = engine->generate("Once upon a time", params, [&](const TextDelta& d) {
    streamed += d.text;
    return Flow::kContinue;
  });

  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_EQ(done->tokens.size(), 20u);
  EXPECT_EQ(done->finish, FinishReason::kLength);
  EXPECT_EQ(done->text, engine->tokenizer()->decode(done->tokens, SpecialTokens::kSkip));
  EXPECT_EQ(streamed, done->text);
  EXPECT_GT(done->prompt_tokens, 0);
  EXPECT_GE(done->total_s, done->first_token_s);
}

TEST(EngineApi, SeedOfTheEngineDecidesForRequestsWithoutOne) {
  SamplingParams params = greedy(12);
  params.temperature = 1.5f;
  const auto prompt = some_prompt(9, 2);
  EngineOptions o = small_options();
  o.seed = 5;
  const Trace expected = run_alone(*load(o), prompt, params);
  EXPECT_EQ(run_alone(*load(o), prompt, params), expected);
  o.seed = 6;
  EXPECT_NE(run_alone(*load(o), prompt, params).tokens, expected.tokens);
  o.seed.reset();
  const auto first = load(o);
  const auto second = load(o);

  EXPECT_NE(first->options().seed, second->options().seed);
}

TEST(EngineApi, CallbackStopsTheAnswer) {
  const auto engine = load(small_options());

  const auto done = engine->generate("Once", greedy(50), [](const TextDelta& d) {
    return d.index >= 4 ? Flow::kStop : Flow::kContinue;
  });

  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->finish, FinishReason::kAborted);
  EXPECT_EQ(done->tokens.size(), 5u);
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(engine->stats().owned_pages, 0);
}

TEST(EngineApi, ALongPromptIsStoppedBetweenItsChunks) {
  EngineOptions o = small_options();
  o.max_num_batched_tokens = 32;
  const auto engine = load(o);
  const std::vector<int32_t> prompt(200, 7);
  int chunks = 0;

  const auto done = engine->generate(prompt, greedy(50), {},
                                     [&] { return ++chunks == 2 ? Flow::kStop : Flow::kContinue; });

  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_EQ(done->finish, FinishReason::kAborted);
  EXPECT_EQ(chunks, 2);
  EXPECT_TRUE(done->tokens.empty());
  EXPECT_TRUE(engine->idle());
}

TEST(EngineApi, RefusedRequestsLeaveTheEngineUsable) {
  const auto engine = load(small_options());
  SamplingParams bad = greedy(5);
  bad.top_p = 0.0f;

  EXPECT_EQ(engine->generate("x", bad).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->generate(std::vector<int32_t>{}, greedy(5)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->generate("x", greedy(5000)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine->generate("x", greedy(5)).ok());
}

TEST(EngineApi, CacheFormatsGiveUsableAnswers) {
  const auto prompt = some_prompt(50, 3);
  EngineOptions o = small_options();
  const Trace bf16 = run_alone(*load(o), prompt, greedy(1));
  for (const Format kv : {Format::kF32, Format::kE4m3}) {
    o.kv_cache_dtype = kv;
    const auto engine = load(o);
    const Trace t = run_alone(*engine, prompt, greedy(8));
    EXPECT_EQ(t.tokens.size(), 8u);
    EXPECT_NEAR(t.logprobs[0], bf16.logprobs[0], 0.5) << format_name(kv);
  }
}

TEST(EngineApi, PlansAsItLoads) {
  const EngineOptions o = small_options();
  const auto plan = Engine::plan(o);
  ASSERT_TRUE(plan.ok()) << plan.status().message();

  const auto engine = load(o);

  EXPECT_EQ(plan->text().substr(0, plan->text().find("  all")),
            engine->memory_plan().text().substr(0, engine->memory_plan().text().find("  all")));
  EXPECT_EQ(plan->num_blocks, 8 * 16);
  EXPECT_EQ(engine->options().dtype, Format::kBf16);
  EXPECT_EQ(engine->options().max_model_len, 256);
}

TEST(EngineApi, LoadRefusesByName) {
  EngineOptions missing = small_options();
  missing.model = kModel + "/nothing-here";
  EXPECT_EQ(Engine::load(missing).status().code(), StatusCode::kNotFound);
  EngineOptions unknown = small_options();
  unknown.model.clear();
  unknown.preset = "no-such-preset";
  unknown.dummy_weights = true;
  EXPECT_EQ(Engine::load(unknown).status().code(), StatusCode::kNotFound);
  EngineOptions invalid = small_options();
  invalid.max_num_seqs = 0;
  EXPECT_EQ(Engine::load(invalid).status().code(), StatusCode::kInvalidArgument);
  EngineOptions length = small_options();
  length.max_model_len = 1 << 29;
  EXPECT_NE(Engine::load(length).status().message().find("--max-model-len"), std::string::npos);
}

TEST(EngineApi, ConfigAloneMakesADummyOfAnyFormat) {
  const std::filesystem::path folder = testing::TempDir() + "/config_alone";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kModel + "/config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  EngineOptions o = small_options();
  o.model = folder.string();
  o.dummy_weights = true;
  o.tokenizer = kModel;
  const Status status = Engine::load(o).status();  // the formats are those of files, of which
  EXPECT_THAT(status.message(), testing::HasSubstr("model.safetensors"));  // there are none
  o.format = PresetFormatName::kNvfp4;

  const auto engine = load(o);

  EXPECT_EQ(run_alone(*engine, some_prompt(20, 3), greedy(4)).tokens.size(), 4u);
  o.dummy_weights = false;
  EXPECT_EQ(Engine::load(o).status().code(), StatusCode::kInvalidArgument);
}

TEST(EngineApi, LoadRefusesUnknownPinsBeforeItReadsWeights) {
  for (const auto& [pin, near] : {std::pair<Pins, const char*>{{{"o_prj", "portable"}}, "o_proj"},
                                  {{{"o_proj", "portabel"}}, "portable"}}) {
    EngineOptions options = small_options();
    options.pins = pin;
    bool reads = false;

    const Status status = Engine::load(options, [&](int64_t, int64_t) { reads = true; }).status();

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(str_cat("did you mean ", near)), std::string::npos)
        << status.message();
    EXPECT_FALSE(reads);
  }
}

// 1.2 TiB of weights: refused by the plan, before anything of that size is allocated.
TEST(EngineApi, RefusesAModelThatDoesNotFit) {
  EngineOptions o = small_options();
  o.model.clear();
  o.preset = "deepseek-v3";
  o.format = PresetFormatName::kBf16;
  o.dummy_weights = true;

  const Status status = Engine::load(o).status();

  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(status.message().find("GiB available"), std::string::npos) << status.message();
}

// A prompt and its answer, and the variants that ran.
std::pair<Trace, std::vector<std::string>> run_recorded(Engine& engine) {
  Recorder recorder(RecordLevel::kShapes, 1 << 14);
  engine.core().drop_prefix_cache();
  engine.core().set_recorder(&recorder);
  std::pair<Trace, std::vector<std::string>> out{run_alone(engine, some_prompt(20, 3), greedy(4)),
                                                 {}};
  engine.core().set_recorder(nullptr);
  for (const OpRecord& r : recorder.records())
    out.second.emplace_back(r.variant);
  return out;
}

TEST(EngineApi, EnginesOfTwoInstructionSetsAndAPlanLiveInOneProcess) {
  EngineOptions weak = small_options();
  weak.isa = Isa::kPortable;
  const auto strong = load(small_options());
  const auto alone = run_recorded(*strong);

  const auto portable = load(weak);
  const auto of_portable = run_recorded(*portable);
  const KernelSet amx = KernelSet::planned_for_cpu(Isa::kAmx);
  Recorder planned(RecordLevel::kShapes, 1);
  const auto needs = dry_run(strong->model(), {.decode = {.count = 1, .cached = 8}},
                             {.kernels = &amx, .recorder = &planned});

  ASSERT_TRUE(needs.ok()) << needs.status().message();
  EXPECT_EQ(run_recorded(*strong), alone);
  EXPECT_EQ(run_recorded(*portable), of_portable);
  for (const std::string& variant : of_portable.second)
    EXPECT_EQ(variant.find("avx"), std::string::npos) << variant;
  EXPECT_EQ(alone.second == of_portable.second, best_isa() < Isa::kAvx2);
}

TEST(EngineApi, ReportsProgress) {
  int64_t last = 0;
  int64_t of = 0;

  const auto engine = Engine::load(small_options(), [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    last = done;
    of = total;
  });

  ASSERT_TRUE(engine.ok());
  EXPECT_GT(of, 0);
  EXPECT_EQ(last, of);
}

TEST(EngineApi, LogprobsOfAPromptAreThoseOfItsScore) {
  auto engine = Engine::load(small_options()).value();
  const std::vector<int32_t> ids = some_prompt(100, 3);
  const std::vector<double> nll = engine->token_nll(ids).value();
  std::vector<PromptLogprobs> found;
  Request request;
  request.prompt = ids;
  request.sampling = greedy_sampling();
  request.sampling.max_tokens = 1;
  request.prompt_logprobs = 2;
  request.on_token = [&](const TokenEvent& e) {
    if (e.prompt_logprobs != nullptr) found = *e.prompt_logprobs;
  };

  ASSERT_TRUE(engine->submit(std::move(request)).ok());
  while (!engine->idle())
    ASSERT_TRUE(engine->step().ok());

  ASSERT_EQ(found.size(), nll.size());
  for (size_t i = 0; i < nll.size(); ++i) {
    EXPECT_EQ(found[i].token.token, ids[i + 1]);
    EXPECT_NEAR(found[i].token.logprob, -nll[i], 1e-4) << i;
    EXPECT_GE(found[i].top[0].logprob, found[i].token.logprob);
    EXPECT_EQ(found[i].rank == 1, found[i].top[0].token == ids[i + 1]) << i;
  }
}

}  // namespace
}  // namespace fathom
