// Drafts by the draft layer on a GPU: chains of passes, captured and launched, whole engines that
// draft chains and trees, and moves of the rows of a path. Part of engine_gpu_test.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/api/engine.h"
#include "fathom/models/registry.h"
#include "tests/gpu/gpu_test_tree.h"
#include "tests/support/cpu_kernels.h"
#include "tests/support/draft_checkpoint.h"
#include "tests/support/drafted_sequences.h"
#include "tests/support/engine_traces.h"
#include "tests/support/v4_checkpoint.h"

namespace fathom {
namespace {

class GpuDrafts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Gpu>> opened = Gpu::open();
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    gpu_ = std::move(opened).value();
    checkpoint_ = std::make_unique<DraftCheckpoint>(GetParam(), gpu_test_tree());
    OpenOptions open;
    open.model.page_size = DraftedSequences::kPage;
    open.pool = &pool_;
    open.gpu = &gpu_->info();
    auto model = open_model(ModelSource::open(checkpoint_->path()).value(),
                            {.device = DeviceKind::kCuda}, open);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(model).value();
  }

  Compute compute() { return {.pool = &pool_, .cpu_kernels = &cpu_kernels(), .gpu = gpu_.get()}; }

  ThreadPool pool_{2, PinThreads::kNo};
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<DraftCheckpoint> checkpoint_;
  std::unique_ptr<Model> model_;
};

// Every pass of a chain has the shape of the same pass alone, so the bits are those.
TEST_P(GpuDrafts, ChainsInGraphsEqualSinglePassesBitForBit) {
  SamplingParams drawn;
  drawn.temperature = 0.9f;
  for (const SamplingParams& params : {greedy_sampling(), drawn}) {
    SCOPED_TRACE(params.temperature);
    DraftedSequences singly(*model_, compute(), CudaGraphs::kOff);
    DraftedSequences chained(*model_, compute(), CudaGraphs::kOff);
    DraftedSequences captured(*model_, compute());

    const std::vector<int32_t> expected = singly.guess(params, 8, 1);

    EXPECT_EQ(std::ranges::count(expected, -1), 0);
    EXPECT_EQ(chained.guess(params, 8, 4), expected);
    EXPECT_EQ(captured.guess(params, 8, 4), expected);  // launched and captured, then replayed
    EXPECT_EQ(captured.executor().num_graphs(), 1);
    EXPECT_EQ(singly.executor().num_graphs(), 0);
    EXPECT_TRUE(chained.states() == singly.states());
    EXPECT_TRUE(captured.states() == singly.states());
    EXPECT_TRUE(captured.cache() == singly.cache());
  }
}

// Log-probabilities are found in the graph, and the nodes of later levels chosen there.
void expect_equal_levels(const Model& model, const Compute& compute, int64_t levels) {
  DraftedSequences launched(model, compute, CudaGraphs::kOff, true);
  DraftedSequences captured(model, compute, CudaGraphs::kOn, true);
  DraftedSequences chained(model, compute, CudaGraphs::kOff, true);
  DraftedSequences in_graphs(model, compute, CudaGraphs::kOn, true);

  const auto expected = launched.grow(levels, 1);

  ASSERT_EQ(std::ssize(expected), levels * 6 * 2);
  for (const auto& [token, logprob] : expected) {
    EXPECT_GE(token, 0);
    EXPECT_LT(logprob, 0.0f);
  }
  EXPECT_EQ(captured.grow(levels, 1), expected);
  EXPECT_EQ(chained.grow(levels, 3), expected);
  EXPECT_EQ(in_graphs.grow(levels, 3), expected);  // launched and captured, then replayed
  EXPECT_EQ(in_graphs.executor().num_graphs(), 1);
  EXPECT_EQ(launched.executor().num_graphs(), 0);
  for (DraftedSequences* drafted : {&captured, &chained, &in_graphs}) {
    EXPECT_TRUE(drafted->states() == launched.states());
    EXPECT_TRUE(drafted->cache() == launched.cache());
  }
}

TEST_P(GpuDrafts, LevelsOfTreesInGraphsEqualSingleOnesBitForBit) {
  expect_equal_levels(*model_, compute(), 9);
}

TEST(GpuDraftsOfWindows, LevelsOfTreesInGraphsEqualSingleOnesBitForBit) {
  const auto gpu = Gpu::open().value();
  ThreadPool pool(2, PinThreads::kNo);
  const V4Checkpoint checkpoint;
  OpenOptions open;
  open.model.page_size = 32;
  open.pool = &pool;
  open.gpu = &gpu->info();
  const auto model =
      open_model(ModelSource::open(checkpoint.path()).value(), {.device = DeviceKind::kCuda}, open);
  ASSERT_TRUE(model.ok()) << model.status().message();
  expect_equal_levels(**model, {.pool = &pool, .cpu_kernels = &cpu_kernels(), .gpu = gpu.get()}, 6);
}

EngineOptions options_of(const DraftCheckpoint& checkpoint,
                         const DraftShape& shape = {.tokens = 0}) {
  EngineOptions o;
  o.model = checkpoint.path();
  EXPECT_TRUE(set_option(o, "device", "cuda").ok());
  o.threads = 2;
  o.pin_threads = false;
  o.dtype = Format::kF32;  // products of few rows and of many add up differently: by little here
  o.block_size = 16;
  o.attention_key_chunk = 64;
  o.max_model_len = 256;
  o.max_num_batched_tokens = 48;  // prompts come in chunks
  o.max_num_seqs = 4;
  o.seed = 7;
  if (shape.tokens == 0) return o;
  o.speculative = Speculative::kMtp;
  o.speculative_tokens = shape.tokens;
  o.speculative_topk = shape.branches;
  o.speculative_width = shape.width;
  return o;
}

// The first two share a prefix of pages.
std::vector<std::vector<int32_t>> prompts_of(int64_t vocabulary) {
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t length : {70, 75, 5, 33}) {
    prompts.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      const int64_t which = length >= 70 && i < 64 ? 70 : length;
      prompts.back().push_back(static_cast<int32_t>((37 * i + 11 * which) % (vocabulary - 8) + 4));
    }
  }
  return prompts;
}

std::vector<std::vector<int32_t>> tokens_of(const std::vector<Trace>& traces) {
  std::vector<std::vector<int32_t>> tokens;
  for (const Trace& trace : traces)
    tokens.push_back(trace.tokens);
  return tokens;
}

// Tokens that are equal up to the first that is not, of all tokens.
double agreement(const std::vector<std::vector<int32_t>>& a,
                 const std::vector<std::vector<int32_t>>& b) {
  int64_t equal = 0;
  int64_t all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    equal += std::ranges::mismatch(a[i], b[i]).in1 - a[i].begin();
    all += std::ssize(a[i]);
  }
  return static_cast<double>(equal) / static_cast<double>(all);
}

TEST_P(GpuDrafts, EnginesThatDraftSayWhatOthersSay) {
  // An indexer chooses among keys in 8 bits, where rounding moves a code now and then.
  const double least = std::string_view(GetParam()) == "micro-v32" ? 0.6 : 0.9;
  const MonotonicClock clock;
  const auto plain = load(options_of(*checkpoint_));
  const auto prompts = prompts_of(plain->model().config().vocab_size);
  std::vector<SamplingParams> params(prompts.size(), greedy(40));
  for (size_t i = 0; i < params.size(); ++i)
    params[i].top_logprobs = i % 2 == 0 ? -1 : 3;
  const auto expected = tokens_of(run_together(*plain, prompts, params, Arrival::kAtOnce));
  for (const DraftShape& shape : {DraftShape{.tokens = 1},
                                  {.tokens = 2},
                                  {.tokens = 3},
                                  {.tokens = 4},
                                  {.tokens = 5},
                                  {.tokens = 1, .branches = 4},
                                  {.tokens = 3, .branches = 2},
                                  {.tokens = 5, .branches = 4, .width = 9}}) {
    SCOPED_TRACE(str_cat(shape.tokens, " deep, ", shape.branches, " at a place"));
    const auto engine = load(options_of(*checkpoint_, shape));
    const auto core = always_drafting(*engine, clock);
    for (const Arrival arrival : {Arrival::kOneAStep, Arrival::kAtOnce}) {
      const auto found = tokens_of(run_together(*core, prompts, params, arrival));
      for (const auto& tokens : found)
        EXPECT_EQ(tokens.size(), 40u);
      EXPECT_GE(agreement(expected, found), least);
    }
    const CoreStats stats = core->stats();
    EXPECT_GT(stats.drafted_tokens, 100);
    EXPECT_GT(stats.prefix.hit_tokens, 0);
    EXPECT_EQ(stats.owned_pages, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, GpuDrafts, testing::Values("micro-v3", "micro-v32"));

// Rows of 32, 12 and 5 bytes in pages and of 16 in a ring, in two layers each; more moves than a
// thread has at once.
TEST(GpuCache, MovesRowsLikeTheCpu) {
  const auto gpu = Gpu::open().value();
  CacheLayout layout{.block_tokens = 4, .groups = {}};
  for (const auto& [format, width] :
       {std::pair{Format::kF32, 8}, {Format::kF32, 3}, {Format::kE4m3, 5}}) {
    layout.groups.push_back({.name = "rows",
                             .layers = {0, 1},
                             .rows = 4,
                             .codec = PageCodec::dense("rows", format, width, nullptr)});
  }
  layout.groups.push_back({.name = "ring",
                           .layers = {0, 1},
                           .extent = CacheExtent::kWindow,
                           .window = 8,
                           .rows = 40,
                           .codec = PageCodec::dense("ring", Format::kF32, 4, nullptr)});
  CacheStorage host = CacheStorage::allocate(layout, 12, 3).value();
  CacheStorage device = CacheStorage::allocate(layout, 12, 3, DeviceKind::kCuda).value();
  for (int64_t i = 0; i < host.bytes(); ++i)
    host.data()[i] = static_cast<std::byte>(i * 7 % 251);
  Stream& stream = gpu->stream();
  ASSERT_TRUE(stream.copy(device.data(), host.data(), host.bytes()).ok());
  const std::vector<PageId> pages{11, 3, 7, 0, 1, 10, 4, 5, 9, 2};
  // Every second row is of the path.
  std::vector<int32_t> parents(38, -1);
  std::vector<int32_t> path;
  for (int32_t row = 1; row < 38; row += 2) {
    parents[static_cast<size_t>(row)] = row - 2;
    path.push_back(row);
  }
  TreeRows tree;
  tree.set(0, parents);
  RowMoves moves(layout);
  moves.add(tree, path, pages, 1);
  View there = moves.all();
  const Buffer list = Buffer::allocate(DeviceKind::kCuda, 8 * there.numel(), "moves").value();
  ASSERT_TRUE(stream.copy(list.data(), there.data, list.size()).ok());
  there.data = list.data();
  there.on_device = true;

  ASSERT_TRUE(device.move_rows(moves, there, &stream).ok());

  std::vector<std::byte> found(static_cast<size_t>(host.bytes()));
  ASSERT_TRUE(stream.copy(found.data(), device.data(), host.bytes()).ok());
  ASSERT_TRUE(stream.synchronize().ok());
  ASSERT_TRUE(host.move_rows(moves, moves.all(), nullptr).ok());
  EXPECT_TRUE(std::ranges::equal(found, std::span(host.data(), found.size())));
}

}  // namespace
}  // namespace fathom
