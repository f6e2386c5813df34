// The engine on a GPU: logits against stored references and against the CPU backend, captured steps
// against launched ones, samplers, limits. Needs the tree (models/, tests/golden/), libc and the
// driver.
//
//   engine_gpu_test [--root DIR] [--gtest_filter=...]     DIR: the tree; default: the working
//   folder
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/api/engine.h"
#include "fathom/base/rng.h"
#include "fathom/models/registry.h"
#include "fathom/runtime/eval/compare_logits.h"
#include "fathom/runtime/eval/evaluate.h"
#include "fathom/runtime/executor/decode_shapes.h"
#include "fathom/runtime/forward_session.h"
#include "tests/gpu/gpu_test_tree.h"
#include "tests/support/allocation_count.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

std::string micro(const std::string& name) {
  return str_cat(gpu_test_tree(), "/tests/golden/", name);
}

std::string shipped(const std::string& name = "tiny-v3-nvfp4") {
  return str_cat(gpu_test_tree(), "/models/", name);
}

template <class T>
T must(Result<T> result) {
  FATHOM_CHECK(result.ok(), result.ok() ? "" : result.status().message());
  return std::move(result).value();
}

Gpu& gpu() {
  static const std::unique_ptr<Gpu> opened = must(Gpu::open());
  return *opened;
}

ThreadPool& pool() {
  static ThreadPool threads(4, PinThreads::kNo);
  return threads;
}

/// A model on the CPU or the GPU with a session.
struct Runner {
  std::unique_ptr<Model> model;
  std::unique_ptr<ForwardSession> session;
};

struct RunnerOptions {
  Format activations = Format::kBf16;
  std::optional<Format> indexer_keys = {};  ///< the model's own
  std::optional<Format> kv_format = {};     ///< the activations'
  int64_t chunk = 512;                      ///< tokens of a prompt in a pass
  int64_t max_tokens = 512;
  int64_t sequences = 1;
  CudaGraphs graphs = CudaGraphs::kOn;
  bool draft = false;
  AttentionOptions attention = {};
};

Runner make_runner(const std::string& directory, DeviceKind device, RunnerOptions o = {}) {
  OpenOptions open;
  open.model.activations = o.activations;
  open.model.indexer_format = o.indexer_keys;
  open.model.kv_format = o.kv_format;
  open.model.attention = o.attention;
  open.model.draft = o.draft;
  open.pool = &pool();
  Runner r;
  Gpu* on = device == DeviceKind::kCuda ? &gpu() : nullptr;
  if (on != nullptr) open.gpu = &on->info();
  r.model = must(open_model(must(ModelSource::open(directory)), {.device = device}, open));
  r.session = must(
      ForwardSession::create(*r.model, {.pool = &pool(), .cpu_kernels = &cpu_kernels(), .gpu = on},
                             {.max_tokens = o.max_tokens,
                              .chunk = o.chunk,
                              .sequences = o.sequences,
                              .prefill_logits = LogitRows::kAll,
                              .draft = o.draft && r.model->has_draft(),
                              .cuda_graphs = o.graphs}));
  return r;
}

std::vector<int32_t> random_ids(int64_t count, int64_t vocabulary, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids)
    id = static_cast<int32_t>(rng.next_below(static_cast<uint32_t>(vocabulary)));
  return ids;
}

/// In float32 the keys of an indexer are too: in codes it would choose other rows.
VectorComparison compare_with_golden(const std::string& name, DeviceKind device, Format format) {
  std::optional<Format> keys;
  if (format == Format::kF32) keys = Format::kF32;
  const Runner r =
      make_runner(micro(name), device,
                  {.activations = format, .indexer_keys = keys, .max_tokens = 400, .draft = true});
  return must(compare_vectors(*r.model, *r.session, micro(name) + "/golden.safetensors", {}));
}

class Micro : public testing::TestWithParam<const char*> {};

// Everything but rounding is the same in float32: the wiring of every layer and the draft head.
TEST_P(Micro, Float32LogitsAreThoseOfTheReference) {
  const VectorComparison c = compare_with_golden(GetParam(), DeviceKind::kCuda, Format::kF32);

  EXPECT_TRUE(check_vectors(c, {}, true).empty())
      << "largest logit difference " << c.max_abs_logit() << ", router " << c.router_equal << " of "
      << c.router_choices;
  std::printf("  %s f32: largest logit difference %.2e, router %lld of %lld\n", GetParam(),
              c.max_abs_logit(), static_cast<long long>(c.router_equal),
              static_cast<long long>(c.router_choices));
}

// Random models of 64 columns amplify bf16 rounding, and one other expert moves a row far: the
// CPU's own distance from the float32 reference is the measure.
TEST_P(Micro, Bf16IsAsCloseToTheReferenceAsTheCpuIs) {
  const VectorComparison on_gpu = compare_with_golden(GetParam(), DeviceKind::kCuda, Format::kBf16);
  const VectorComparison on_cpu = compare_with_golden(GetParam(), DeviceKind::kCpu, Format::kBf16);

  EXPECT_GE(1.5 * (1 - on_cpu.cosine()) + 1e-4, 1 - on_gpu.cosine());
  EXPECT_GE(on_gpu.top1_share(), on_cpu.top1_share() - 0.015);
  std::printf("  %s bf16: cosine %.6f (CPU %.6f), same first choice %.2f %% (CPU %.2f %%)\n",
              GetParam(), on_gpu.cosine(), on_cpu.cosine(), 100 * on_gpu.top1_share(),
              100 * on_cpu.top1_share());
}

INSTANTIATE_TEST_SUITE_P(
    Engine,
    Micro,
    testing::Values("micro-v2-lite", "micro-v2", "micro-v3", "micro-v32", "micro-v4"));

std::vector<std::vector<int32_t>> text_sequences(const Tokenizer& tokenizer) {
  const char* texts[] = {
      "Once upon a time there was a little girl named Lily. She loved to play in the park with her "
      "friends. One day she found a big red ball under a tree.",
      "Tom and his dog went to the sea. The sun was hot and the water was cold. Tom said, \"Let us "
      "swim!\" But the dog was afraid of the waves.",
      "The old man had a garden with many flowers. Every morning he gave them water and sang a "
      "song."};
  std::vector<std::vector<int32_t>> out;
  for (const char* text : texts)
    out.push_back(tokenizer.encode(text, {.add_bos = AddBos::kAsConfigured}));
  return out;
}

/// A trained model, and how close two backends in bf16 are there.
struct Trained {
  const char* name;
  double cosine;
  double mean_kl;
  double top1_share;

  friend void PrintTo(const Trained& t, std::ostream* out) { *out << t.name; }
};

class TrainedModel : public testing::TestWithParam<Trained> {};

TEST_P(TrainedModel, LogitsAreThoseOfTheCpu) {
  const std::string model = shipped(GetParam().name);
  const Tokenizer tokenizer = must(Tokenizer::load(model));
  const Runner on_cpu = make_runner(model, DeviceKind::kCpu);
  const Runner on_gpu = make_runner(model, DeviceKind::kCuda);

  const LogitComparison c =
      must(compare_logits(*on_cpu.session, *on_gpu.session, text_sequences(tokenizer), nullptr));

  EXPECT_GE(c.cosine(), GetParam().cosine);
  EXPECT_LE(c.mean_kl(), GetParam().mean_kl);
  EXPECT_GE(c.top1_share(), GetParam().top1_share);
  std::printf("  %s, %lld positions: cosine %.7f, mean KL %.2e, same first choice %.2f %%\n",
              GetParam().name, static_cast<long long>(c.positions), c.cosine(), c.mean_kl(),
              100 * c.top1_share());
}

// Prefixes in the cache, chunks of keys, and the absorbed form for prompts.
TEST(Engine, OtherFormsOfAttentionAgreeWithTheCpu) {
  const Tokenizer tokenizer = must(Tokenizer::load(shipped()));
  AttentionOptions chunked;
  chunked.prefill_chunk = 64;
  AttentionOptions absorbed;
  absorbed.always_absorbed = true;
  AttentionOptions fused;
  fused.fused_rope = true;
  for (const AttentionOptions& attention : {chunked, absorbed, fused}) {
    const Runner on_cpu = make_runner(shipped(), DeviceKind::kCpu, {.attention = attention});
    const Runner on_gpu = make_runner(shipped(), DeviceKind::kCuda, {.attention = attention});
    auto sequences = text_sequences(tokenizer);
    auto& longest = sequences.front();
    while (longest.size() < 200)
      longest.insert(longest.end(), sequences[1].begin(), sequences[1].end());

    const LogitComparison c =
        must(compare_logits(*on_cpu.session, *on_gpu.session, sequences, nullptr));

    EXPECT_GE(c.cosine(), 0.9995);
    EXPECT_LE(c.mean_kl(), 1e-3);
  }
}

// Prompts of V4 longer than the window's ring: rows of a long pass stand side by side, the first
// tokens of a later one look into the ring.
TEST(Engine, LongPromptsOfV4AreThoseOfTheCpuHoweverTheyAreCut) {
  const std::string model = shipped("tiny-v4-nvfp4");
  auto sequences = text_sequences(must(Tokenizer::load(model)));
  auto& longest = sequences.front();
  while (longest.size() < 400)
    longest.insert(longest.end(), sequences[1].begin(), sequences[1].end());
  for (const Format format : {Format::kBf16, Format::kE4m3}) {
    const Runner on_cpu = make_runner(model, DeviceKind::kCpu, {.kv_format = format, .chunk = 100});
    for (const int64_t chunk : {512, 200, 100}) {
      const Runner on_gpu =
          make_runner(model, DeviceKind::kCuda, {.kv_format = format, .chunk = chunk});

      const LogitComparison c =
          must(compare_logits(*on_cpu.session, *on_gpu.session, sequences, nullptr));

      EXPECT_GE(c.cosine(), 0.999) << format_name(format) << ", " << chunk << " tokens a pass";
      EXPECT_LE(c.mean_kl(), 3e-3) << format_name(format) << ", " << chunk << " tokens a pass";
    }
  }
}

EngineOptions engine_options(const char* device) {
  EngineOptions o;
  o.model = shipped();
  EXPECT_TRUE(set_option(o, "device", device).ok());
  o.threads = 4;
  o.pin_threads = false;
  o.max_model_len = 512;
  o.max_num_seqs = 8;
  o.seed = 1;
  return o;
}

SamplingParams greedy(int64_t max_tokens) {
  SamplingParams p;
  p.temperature = 0;
  p.max_tokens = max_tokens;
  p.ignore_eos = true;
  return p;
}

constexpr const char* kPrompts[] = {
    "Once upon a time there was a king who had three sons. The eldest was",
    "There was once a poor woodcutter who lived with his wife and",
    "In the middle of the forest stood a little house, and in it lived an old",
    "A miller had a beautiful daughter, and he said to the king that she",
    "The wolf knocked at the door and said, \"Open the door, dear children",
    "When the princess came to the well, her golden ball fell into the",
    "The youngest brother set out into the world to seek his",
    "Hansel and Gretel walked the whole night and the next day, but they",
    "The old woman gave him a purse and said, \"",
    "The fox said to the wolf, \"I know where there is",
    "One day the queen sat at the window and",
    "The tailor took his needle and",
    "Then the king ordered that the",
    "The little mermaid looked up to the surface of the",
    "The soldier came back from the war and had nothing but",
    "The dwarf laughed and said, \"To-day I bake",
    "The bird flew to the top of the tree and sang",
    "When the cock crowed, the",
    "The mother wept and said to her daughter, \"",
    "At last he came to a great castle, and there"};

/// Tokens from the start that two answers of 64 share, on average over the prompts.
double mean_agreement(const std::vector<std::vector<int32_t>>& a,
                      const std::vector<std::vector<int32_t>>& b) {
  double equal = 0;
  for (size_t i = 0; i < a.size(); ++i)
    equal += static_cast<double>(std::ranges::mismatch(a[i], b[i]).in1 - a[i].begin());
  return equal / static_cast<double>(a.size());
}

std::vector<std::vector<int32_t>> greedy_answers(const EngineOptions& options) {
  const auto engine = must(Engine::load(options));
  std::vector<std::vector<int32_t>> out;
  for (const char* prompt : kPrompts)
    out.push_back(must(engine->generate(prompt, greedy(64))).tokens);
  return out;
}

// Two runs part at the first near tie that rounding turns. How long that takes is a property of the
// model and the prompts: bf16 and float32 on one CPU part after that long as well.
TEST(Engine, GreedyTextIsThatOfTheCpuAsLongAsRoundingAllows) {
  EngineOptions float32 = engine_options("cpu");
  float32.dtype = Format::kF32;
  const auto reference = greedy_answers(float32);
  const auto on_cpu = greedy_answers(engine_options("cpu"));
  const auto on_gpu = greedy_answers(engine_options("cuda"));

  const double rounding = mean_agreement(reference, on_cpu);
  const double found = mean_agreement(on_cpu, on_gpu);

  EXPECT_GE(found, std::min(56.0, rounding - 12));
  EXPECT_GE(mean_agreement(reference, on_gpu), std::min(56.0, rounding - 12));
  std::printf(
      "  greedy tokens of 64: GPU as CPU in bf16 %.2f, as float32 %.2f; CPU in bf16 as float32 "
      "%.2f\n",
      found, mean_agreement(reference, on_gpu), rounding);
}

// The beginning of a story of V4, before the first near tie.
TEST(Engine, V4TellsTheStoryThatTheCpuTells) {
  const auto story = [](const char* device) {
    EngineOptions o = engine_options(device);
    o.model = shipped("tiny-v4-nvfp4");
    return must(must(Engine::load(o))->generate("Once upon a time", greedy(20))).tokens;
  };

  EXPECT_EQ(story("cuda"), story("cpu"));
}

TEST(Engine, RequestsTogetherGiveTheTextTheyGiveAlone) {
  const auto engine = must(Engine::load(engine_options("cuda")));
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 8; ++i)
    alone.push_back(must(engine->generate(kPrompts[i], greedy(32))).tokens);
  std::vector<std::vector<int32_t>> together(8);
  for (size_t i = 0; i < 8; ++i) {
    Request request;
    request.prompt = engine->tokenizer()->encode(kPrompts[i], {.add_bos = AddBos::kAsConfigured});
    request.sampling = greedy(32);
    request.on_token = [&together, i](const TokenEvent& e) {
      if (e.token >= 0) together[i].push_back(e.token);
    };
    (void)must(engine->submit(std::move(request)));
  }
  while (!engine->idle()) {
    const Status stepped = engine->step();
    ASSERT_TRUE(stepped.ok()) << stepped.message();
  }

  int64_t equal = 0;
  for (size_t i = 0; i < 8; ++i) {
    ASSERT_EQ(together[i].size(), 32u);
    equal += std::ranges::mismatch(alone[i], together[i]).in1 - alone[i].begin();
  }
  EXPECT_GE(static_cast<double>(equal) / 8, 24);  // splits of long contexts follow the batch
}

TEST(Engine, SamplersWorkFromLogitsThatComeBack) {
  const auto engine = must(Engine::load(engine_options("cuda")));
  SamplingParams p;
  p.temperature = 0.8f;
  p.top_p = 0.9f;
  p.repetition_penalty = 1.2f;
  p.top_logprobs = 3;
  p.max_tokens = 24;
  p.seed = 7;

  const Completion first = must(engine->generate("Once upon a time", p));
  const Completion again = must(engine->generate("Once upon a time", p));
  p.seed = 8;
  const Completion other = must(engine->generate("Once upon a time", p));

  EXPECT_EQ(first.tokens, again.tokens);
  EXPECT_NE(first.tokens, other.tokens);
}

/// Logits of `steps` decode steps of some sequences with prompts of their own.
std::vector<float> decode_logits(Runner& r, int64_t sequences, int64_t steps) {
  const int64_t vocabulary = r.model->config().vocab_size;
  r.session->reset();
  for (int64_t s = 0; s < sequences; ++s) {
    const auto prompt = random_ids(5 + 37 * s, vocabulary, static_cast<uint64_t>(s));
    const Status filled = r.session->prefill(s, prompt, LogitRows::kNone, {});
    FATHOM_CHECK(filled.ok(), filled.message());
  }
  std::vector<float> out;
  for (int64_t i = 0; i < steps; ++i) {
    const auto tokens = random_ids(sequences, vocabulary, 100 + static_cast<uint64_t>(i));
    const View logits = must(r.session->decode(tokens));
    const float* data = logits.as<float>();
    out.insert(out.end(), data, data + logits.numel());
  }
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Of V4 with lengths on both sides of its window, of the rows that it chooses, and of its blocks.
TEST_P(TrainedModel, ReplayGivesTheBitsOfLaunches) {
  const std::string model = shipped(GetParam().name);
  Runner graphed = make_runner(model, DeviceKind::kCuda, {.sequences = 9});
  Runner launched =
      make_runner(model, DeviceKind::kCuda, {.sequences = 9, .graphs = CudaGraphs::kOff});
  for (const int64_t sequences : {1, 2, 3, 5, 8, 9}) {
    SCOPED_TRACE(str_cat(sequences, " sequences"));
    const std::vector<float> expected = decode_logits(launched, sequences, 6);
    const std::vector<float> first = decode_logits(graphed, sequences, 6);
    const std::vector<float> second = decode_logits(graphed, sequences, 6);

    EXPECT_TRUE(same_bits(expected, first));
    EXPECT_TRUE(same_bits(expected, second));
  }
  EXPECT_GE(graphed.session->executor().num_graphs(), 5);
  EXPECT_EQ(launched.session->executor().num_graphs(), 0);
}

// Three sequences run as four. The copy must change neither the others nor the cache.
TEST_P(TrainedModel, PaddingRowsAreHarmless) {
  const std::string model = shipped(GetParam().name);
  Runner padded = make_runner(model, DeviceKind::kCuda, {.sequences = 4});
  Runner on_cpu = make_runner(model, DeviceKind::kCpu, {.sequences = 4});
  const std::vector<float> found = decode_logits(padded, 3, 12);
  const std::vector<float> expected = decode_logits(on_cpu, 3, 12);
  const auto width = static_cast<size_t>(padded.model->config().vocab_size);
  LogitComparison c;
  for (size_t at = 0; at < found.size(); at += width) {
    add_position(std::span(expected).subspan(at, width), std::span(found).subspan(at, width), c);
  }

  EXPECT_EQ(c.positions, 36);
  EXPECT_GE(c.cosine(), 0.999);
  EXPECT_LE(c.mean_kl(), 1e-2);
}

TEST_P(TrainedModel, SteadyDecodeAllocatesNothing) {
  Runner r = make_runner(shipped(GetParam().name), DeviceKind::kCuda, {.sequences = 8});
  const int64_t vocabulary = r.model->config().vocab_size;
  std::vector<int32_t> tokens = random_ids(8, vocabulary, 1);
  std::vector<int32_t> next(8);
  for (int i = 0; i < 16; ++i)
    ASSERT_TRUE(r.session->decode_sampled(tokens, greedy_sampling(), next).ok());

  const int64_t host = allocation_count();
  const int64_t free_bytes = must(cuda_free_bytes());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(r.session->decode_sampled(tokens, greedy_sampling(), next).ok());
    std::swap(tokens, next);
  }

  EXPECT_EQ(allocation_count() - host, 0);
  EXPECT_EQ(must(cuda_free_bytes()), free_bytes);
}

INSTANTIATE_TEST_SUITE_P(Engine,
                         TrainedModel,
                         testing::Values(Trained{"tiny-v3-nvfp4", 0.9995, 1e-3, 0.98},
                                         Trained{"tiny-v4-nvfp4", 0.999, 3e-3, 0.97}));

TEST(Limits, ZeroTokensAreRefused) {
  Runner r = make_runner(shipped(), DeviceKind::kCuda);
  const auto decoded = r.session->decode({});
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), StatusCode::kInvalidArgument);

  const auto engine = must(Engine::load(engine_options("cuda")));
  const auto answer = engine->generate(std::span<const int32_t>{}, greedy(4));
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code(), StatusCode::kInvalidArgument);
}

TEST(Limits, ContextsBeyondThePoolAreRefused) {
  EngineOptions o = engine_options("cuda");
  o.max_model_len = 64;
  const auto engine = must(Engine::load(o));

  const auto answer = engine->generate(random_ids(60, 4096, 1), greedy(16));

  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.status().message().find("context_length_exceeded"), std::string::npos);
}

TEST(Limits, WeightsBeyondTheGpuAreRefusedBeforeTheyAreMade) {
  EngineOptions o = engine_options("cuda");
  o.model = "";
  o.preset = "deepseek-v3-fp8";
  o.dummy_weights = true;
  const auto engine = Engine::load(o);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kOutOfMemory) << engine.status().message();
}

TEST(Limits, FormatsWithoutKernelsAreRefusedByName) {
  Preset preset = must(find_preset("deepseek-v2-lite"));
  preset.formats = must(preset_formats("int8", preset.config));
  OpenOptions open;
  open.weights = WeightOrigin::kNone;
  const auto model =
      must(open_model(ModelSource::describe(preset), {.device = DeviceKind::kCuda}, open));
  BatchShape shape;
  shape.decode = {.count = 1, .new_tokens = 1, .cached = 8};

  const auto needs = dry_run(*model, shape, {.kernels = &gpu().kernels(), .gpu = &gpu().info()});

  ASSERT_FALSE(needs.ok());
  EXPECT_EQ(needs.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(needs.status().message().find("int8"), std::string::npos) << needs.status().message();
}

TEST(Shapes, BucketsCoverEveryCountAndFewMore) {
  for (int64_t count = 1; count <= 1024; ++count) {
    EXPECT_GE(decode_bucket(count), count);
    EXPECT_LE(decode_bucket(count), count + std::max<int64_t>(7, count / 4));
    EXPECT_EQ(decode_bucket(decode_bucket(count)), decode_bucket(count));
  }
  EXPECT_EQ(page_buckets(70), (std::vector<int64_t>{4, 8, 16, 32, 64, 70}));
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--root") fathom::gpu_test_tree() = argv[i + 1];
  }
  if (const auto devices = fathom::cuda_devices(); !devices.ok()) {
    std::fprintf(stderr, "engine_gpu_test: %s\n", devices.status().message().c_str());
    return 69;
  }
  return RUN_ALL_TESTS();
}
