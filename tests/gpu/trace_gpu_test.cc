// Recordings of real runs on a GPU: the calls are those of a dry run for it, each with a variant
// and a time, and timing them changes nothing that the model computes. Part of engine_gpu_test.
#include <algorithm>
#include <cstdio>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "fathom/bench/machine/gpu_machine.h"
#include "fathom/report/record/live_trace.h"
#include "fathom/report/test_models_test.h"
#include "fathom/report/trace_files.h"
#include "fathom/runtime/executor/decode_shapes.h"
#include "fathom/text/json.h"
#include "tests/support/cpu_kernels.h"
#include "tests/support/trace_events.h"

namespace fathom {
namespace {

constexpr int64_t kChunk = 64;
constexpr int64_t kShortPrompt = 9;  // one pass, and the draft head behind it
constexpr int64_t kLongPrompt = 70;  // a second pass behind a prefix
constexpr int64_t kSteps = 3;

class GpuTrace : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Gpu>> opened = Gpu::open();
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    gpu_ = std::move(opened).value();
    OpenOptions open;
    open.gpu = &gpu_->info();
    open.model.attention.fused_rope = true;
    open.weights = WeightOrigin::kRandom;
    open.pool = &pool_;
    auto model =
        open_model(ModelSource::describe(small_preset()), {.device = DeviceKind::kCuda}, open);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(model).value();
  }

  LiveOptions options(int64_t prompt, int64_t batch) {
    LiveOptions o{.prompt = {}, .generate = kSteps, .batch = batch, .chunk = kChunk};
    for (int64_t i = 0; i < prompt; ++i)
      o.prompt.push_back(static_cast<int32_t>((7 * i + 3) % model_->config().vocab_size));
    return o;
  }

  LiveRun record(const LiveOptions& o) {
    auto run = run_live(*model_, compute(), o);
    FATHOM_CHECK(run.ok(), run.status().message());
    return std::move(run).value();
  }

  /// What a dry run for this GPU calls.
  std::vector<TraceOp> dry(const BatchShape& shape, DryPass pass = DryPass::kForward) {
    Recorder recorder(RecordLevel::kShapes, 1 << 12);
    const auto needs = dry_run(
        *model_, shape,
        {.kernels = &gpu_->kernels(), .gpu = &gpu_->info(), .recorder = &recorder, .pass = pass});
    FATHOM_CHECK(needs.ok(), needs.status().message());
    auto phase = make_phase("", "", recorder.records(), {}, model_->config().symbols());
    FATHOM_CHECK(phase.ok(), phase.status().message());
    return std::move(phase.value().ops);
  }

  Compute compute() { return {.pool = &pool_, .cpu_kernels = &cpu_kernels(), .gpu = gpu_.get()}; }

  ThreadPool pool_{4, PinThreads::kNo};
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<Model> model_;
};

const TracePhase& phase_of(const LiveRun& run, const std::string& name) {
  for (const TracePhase& phase : run.phases)
    if (phase.name == name) return phase;
  FATHOM_CHECK(false, str_cat("no phase ", name));
  return run.phases.front();
}

std::vector<TraceOp> ops_of_step(const TracePhase& phase, int step) {
  std::vector<TraceOp> out;
  for (const TraceOp& op : phase.ops)
    if (op.step == step) out.push_back(op);
  return out;
}

/// The choice of tokens, which follows a pass with logits, is no part of a dry run.
void expect_same_calls(std::vector<TraceOp> live, const std::vector<TraceOp>& dry) {
  if (!live.empty() && live.back().op == "sample_argmax") live.pop_back();
  ASSERT_EQ(live.size(), dry.size());
  for (size_t i = 0; i < dry.size(); ++i) {
    EXPECT_EQ(live[i].op, dry[i].op) << i;
    EXPECT_EQ(live[i].kernel, dry[i].kernel) << dry[i].op;
    EXPECT_EQ(live[i].variant, dry[i].variant) << dry[i].op;
    EXPECT_EQ(inputs_text(live[i]), inputs_text(dry[i]));
    EXPECT_EQ(outputs_text(live[i]), outputs_text(dry[i]));
  }
}

TEST_F(GpuTrace, CallsAreThoseOfADryRunForThisGpu) {
  constexpr int64_t kBatch = 3;
  const LiveRun with_draft = record(options(kShortPrompt, 1));
  const LiveRun chunked = record(options(kLongPrompt, kBatch));
  BatchShape first;
  first.prefill = {.count = 1, .new_tokens = kShortPrompt, .cached = 0};
  BatchShape draft = first;
  draft.logits = LogitRows::kAll;
  BatchShape second;
  second.prefill = {.count = 1, .new_tokens = kLongPrompt - kChunk, .cached = kChunk};
  BatchShape decode;
  decode.decode = {.count = kBatch, .new_tokens = 1, .cached = kLongPrompt};
  decode.padding = {.requests = decode_bucket(kBatch), .pages = 2};

  expect_same_calls(ops_of_step(phase_of(with_draft, "prefill"), 0), dry(first));
  expect_same_calls(ops_of_step(phase_of(with_draft, "draft"), 0), dry(draft, DryPass::kDraft));
  expect_same_calls(ops_of_step(phase_of(chunked, "prefill_chunked"), 0), dry(second));
  expect_same_calls(ops_of_step(phase_of(chunked, "decode"), 0), dry(decode));
  EXPECT_EQ(phase_of(chunked, "prefill").steps.size(), static_cast<size_t>(kBatch));
  EXPECT_EQ(phase_of(chunked, "decode").steps.size(), static_cast<size_t>(kSteps));
}

TEST_F(GpuTrace, EveryCallHasAVariantAndATimeWithinItsStep) {
  for (const int64_t prompt : {kShortPrompt, kLongPrompt}) {
    const LiveRun run = record(options(prompt, 2));
    int64_t clock = 0;
    for (const TracePhase& phase : run.phases) {
      for (const TraceOp& op : phase.ops) {
        const TraceStep& step = phase.steps[static_cast<size_t>(op.step)];
        EXPECT_EQ(op.backend, Backend::kCuda) << op.op;
        EXPECT_FALSE(op.variant.empty()) << op.op;
        EXPECT_GT(op.end_ns, op.start_ns) << op.op;
        EXPECT_GE(op.start_ns, step.start_ns) << op.op;
        EXPECT_LE(op.end_ns, step.end_ns) << op.op;
      }
      for (const TraceStep& step : phase.steps)
        clock = std::max(clock, step.end_ns);
    }
    EXPECT_LT(clock, int64_t{1'000'000'000}) << "steps follow each other without the host's time";
  }
}

// With marks nothing runs beside anything else, so that the ops take at least what the step takes;
// the rest is what a graph of many small kernels varies by.
TEST_F(GpuTrace, OpsAddUpToTheirStepInOneStream) {
  const LiveRun run = record(options(kLongPrompt, 2));
  for (const TracePhase& phase : run.phases) {
    for (size_t s = 0; s < phase.steps.size(); ++s) {
      const TraceStep& step = phase.steps[s];
      int64_t sum = 0;
      for (const TraceOp& op : ops_of_step(phase, static_cast<int>(s)))
        sum += op.end_ns - op.start_ns;
      EXPECT_GT(step.graph_ns, 0);
      EXPECT_GE(static_cast<double>(sum), 0.8 * static_cast<double>(step.one_stream_ns))
          << phase.name << " " << s;
      std::printf("  %s %zu: %.1f us as one graph, %.1f in one stream, %.1f op by op\n",
                  phase.name.c_str(), s, static_cast<double>(step.graph_ns) * 1e-3,
                  static_cast<double>(step.one_stream_ns) * 1e-3, static_cast<double>(sum) * 1e-3);
    }
  }
}

TEST_F(GpuTrace, TokensAreThoseOfAnUntimedRun) {
  for (const int64_t prompt : {kShortPrompt, kLongPrompt}) {
    const LiveOptions o = options(prompt, 1);
    const LiveRun run = record(o);
    auto session = ForwardSession::create(*model_, compute(),
                                          {.max_tokens = prompt + kSteps, .chunk = kChunk});
    ASSERT_TRUE(session.ok()) << session.status().message();
    std::vector<int32_t> expected;
    std::vector<int32_t> token(1);
    const auto choose = [&](int64_t, const StepResults& out) -> Status {
      if (out.logits.dim(0) == 0) return {};
      const float* row = out.logits.as<float>();
      token[0] = static_cast<int32_t>(std::max_element(row, row + out.logits.dim(1)) - row);
      return {};
    };
    ASSERT_TRUE((*session)->prefill(0, o.prompt, LogitRows::kLast, choose).ok());
    for (int64_t i = 0; i < kSteps; ++i) {
      expected.push_back(token[0]);
      const std::vector<int32_t> now = token;
      ASSERT_TRUE((*session)->decode_sampled(now, greedy_sampling(), token).ok());
    }

    EXPECT_EQ(run.tokens, expected);
  }
}

TEST_F(GpuTrace, DocumentsHaveEveryFigureAndNestedEvents) {
  LiveRun run = record(options(kLongPrompt, 2));
  Recording r;
  r.title = r.model = "small";
  r.command = "fathom trace";
  r.settings = {{"device", gpu_->info().name}};
  r.config = model_->config();
  r.symbols = r.config.symbols();
  r.weights = model_->weights().summary();
  r.timed = r.has_variants = true;
  r.begin_ns = run.begin_ns;
  r.phases = std::move(run.phases);
  const auto peaks = measure_gpu_peaks(gpu_->info(), gpu_->stream());
  ASSERT_TRUE(peaks.ok()) << peaks.status().message();
  const TraceShape shape{.batch = 2,
                         .prompt_tokens = kLongPrompt,
                         .kv_len = 256,
                         .kernels = &gpu_->kernels(),
                         .gpu = &gpu_->info()};
  const auto variations = dry_variations(*model_, shape);
  ASSERT_TRUE(variations.ok()) << variations.status().message();

  const TraceFiles files = make_trace_files(r, *variations, {}, &*peaks, TraceDetail::kKernels);

  EXPECT_EQ(files.failures, std::vector<std::string>{});
  EXPECT_EQ(files.files.size(), 12u);
  for (const TraceFile& file : files.files) {
    if (file.name != "trace.json") continue;
    const auto json = parse_json(file.text, {.max_bytes = 1 << 26}, file.name);
    ASSERT_TRUE(json.ok()) << json.status().message();
    EXPECT_EQ(test::check_trace_events(*json).errors, std::vector<std::string>{});
  }
  for (const SummaryRow& row : files.summary)
    EXPECT_GT(row.pct_of_roof.value_or(0), 0) << row.name;
}

TEST_F(GpuTrace, ValuesAndOverheadAreRefused) {
  LiveOptions probed = options(kShortPrompt, 1);
  probed.level = RecordLevel::kProbed;
  LiveOptions overhead = options(kShortPrompt, 1);
  overhead.measure_overhead = true;

  EXPECT_EQ(run_live(*model_, compute(), probed).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(run_live(*model_, compute(), overhead).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace fathom
