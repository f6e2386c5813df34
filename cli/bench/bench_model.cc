#include "cli/bench/bench_model.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <vector>

#include "cli/bench/bench_engine.h"
#include "cli/bench/bench_model_gpu.h"
#include "cli/bench/bench_model_rates.h"
#include "cli/config/engine_flags.h"
#include "cli/flags.h"
#include "cli/integers.h"
#include "cli/io/terminal.h"
#include "fathom/bench/machine/peaks.h"
#include "fathom/bench/timing/timer.h"
#include "fathom/os/clock.h"
#include "fathom/os/memory.h"
#include "fathom/runtime/forward_session.h"

namespace fathom::cli {
namespace {

// Decoding, and how fast memory could be read beside each of its runs.
struct DecodeRate {
  Rate rate;
  std::vector<double> read_gbps;       // a run, the better of right before and right after
  std::vector<double> readable_bytes;  // a run: what that rate reads in one step's time
};

Result<DecodeRate> time_decode(ForwardSession& session,
                               const BenchModelFlags& flags,
                               std::span<const int32_t> prefix,
                               int64_t vocabulary,
                               const ReadProbe& memory) {
  constexpr double kProbeSeconds = 0.1;
  DecodeRate out;
  std::vector<double> seconds;
  std::vector<int32_t> next(static_cast<size_t>(flags.batch));
  double before = memory.gbps(kProbeSeconds);
  for (int r = 0; r < flags.repetitions; ++r) {
    session.reset();
    for (int64_t s = 0; s < flags.batch && !prefix.empty(); ++s) {
      FATHOM_TRY(session.prefill(s, prefix, LogitRows::kNone, {}));
    }
    // Fresh tokens each step, so that routing is not the same again and again.
    const auto tokens =
        random_tokens(flags.batch * flags.generate, vocabulary, static_cast<uint64_t>(r) + 7);
    const int64_t begin = monotonic_ns();
    for (int64_t i = 0; i < flags.generate; ++i) {
      const auto step = std::span(tokens).subspan(static_cast<size_t>(i * flags.batch),
                                                  static_cast<size_t>(flags.batch));
      FATHOM_TRY(session.decode_sampled(step, sampling_of(flags), next));
    }
    seconds.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-9);
    const double after = memory.gbps(kProbeSeconds);
    out.read_gbps.push_back(std::max(before, after));
    out.readable_bytes.push_back(out.read_gbps.back() * 1e9 * seconds.back() /
                                 static_cast<double>(flags.generate));
    before = after;
  }
  std::string name = str_cat("tg", flags.generate);
  if (flags.batch > 1) str_append(name, str_cat(" x ", flags.batch));
  if (flags.depth > 0) str_append(name, str_cat(" @ d", flags.depth));
  out.rate = rate_of(std::move(name), static_cast<double>(flags.generate * flags.batch), seconds,
                     static_cast<double>(flags.generate));
  return out;
}

// One recorded pass: its bytes, and what each op took beside what the roof allows.
Result<OpTotals> record_pass(ForwardSession& session, const std::function<Status()>& pass) {
  Recorder recorder(RecordLevel::kTimed, 1 << 15);
  session.set_recorder(&recorder);
  Status status = pass();
  session.set_recorder(nullptr);
  FATHOM_TRY(std::move(status));
  OpTotals totals;
  for (const OpRecord& r : recorder.records()) {
    add_call(totals, r, static_cast<double>(r.end_ns - r.start_ns) * 1e-9);
  }
  return totals;
}

}  // namespace

Result<int> bench_model(const BenchModelFlags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(const Machine machine, set_up_machine(flags.engine));
  ThreadPool& pool = *machine.pool;
  FATHOM_ASSIGN(const OpenedModel opened, open_for(flags.engine, globals, machine));
  if (machine.gpu != nullptr) return bench_model_on_gpu(flags, machine, opened);
  const Model& model = *opened.model;
  const int64_t vocabulary = model.config().vocab_size;
  SessionOptions options;
  options.sequences = flags.batch;
  options.max_tokens = std::max(flags.prompt, flags.depth + flags.generate + 1);
  FATHOM_ASSIGN(const auto session, ForwardSession::create(model, machine.compute(), options));
  const auto prompt = random_tokens(flags.prompt, vocabulary, 1);
  const auto prefix = random_tokens(flags.depth, vocabulary, 2);
  // One pass of each kind touches all memory that the model needs, before the benchmark takes
  // buffers of its own.
  if (flags.prompt > 0) FATHOM_TRY(session->prefill(0, prompt, LogitRows::kLast, {}));
  session->reset();
  FATHOM_TRY(session->decode(random_tokens(flags.batch, vocabulary, 3)).status());
  const int64_t peak_bytes = peak_rss_bytes();
  FATHOM_ASSIGN(Peaks peaks, measure_peaks(pool, machine.isa, PeakOptions{}));

  std::vector<Rate> rates;
  if (flags.prompt > 0) {
    FATHOM_ASSIGN(Rate prefill, time_prefill(*session, flags, prompt));
    rates.push_back(std::move(prefill));
  }
  DecodeRate decode;
  {
    FATHOM_ASSIGN(const ReadProbe memory, ReadProbe::create(pool));
    FATHOM_ASSIGN(decode, time_decode(*session, flags, prefix, vocabulary, memory));
  }
  rates.push_back(decode.rate);
  if (flags.engine_rate) {
    FATHOM_ASSIGN(Rate engine, time_engine(model, machine.compute(), flags));
    rates.push_back(std::move(engine));
  }
  print_rates(opened, flags, rates, "CPU", str_cat(pool.size()));

  const auto tokens = random_tokens(flags.batch, vocabulary, 3);
  session->reset();
  for (int64_t s = 0; s < flags.batch && !prefix.empty(); ++s) {
    FATHOM_TRY(session->prefill(s, prefix, LogitRows::kNone, {}));
  }
  FATHOM_ASSIGN(const auto decode_ops,
                record_pass(*session, [&] { return session->decode(tokens).status(); }));
  const Cost step = sum_of(decode_ops);
  const auto step_bytes = static_cast<double>(step.bytes());
  const auto [low, high] = std::minmax_element(decode.read_gbps.begin(), decode.read_gbps.end());
  std::printf("\nmeasured in this run: read %s GB/s before the runs, bf16 (%s) %s GFLOP/s\n",
              format_fixed(peaks.read_gbps, 1).c_str(), peaks.bf16_unit.c_str(),
              format_fixed(peaks.bf16_gflops, 0).c_str());
  std::printf(
      "decode: %s a step, %s GB/s, %s %% of the read rate right beside each run (%s to %s GB/s)\n",
      format_bytes(step.bytes()).c_str(),
      format_fixed(step_bytes / decode.rate.step_seconds * 1e-9, 1).c_str(),
      format_fixed(100 * step_bytes / median_of(decode.readable_bytes), 1).c_str(),
      format_fixed(*low, 1).c_str(), format_fixed(*high, 1).c_str());
  if (flags.prompt > 0) {
    session->reset();
    FATHOM_ASSIGN(const auto prefill_ops, record_pass(*session, [&] {
                    return session->prefill(0, prompt, LogitRows::kLast, {});
                  }));
    const double gflops = sum_of(prefill_ops).flops / static_cast<double>(flags.prompt) *
                          rates.front().tokens_per_s * 1e-9;
    std::printf(
        "prefill: %s GFLOP a token, %s GFLOP/s, %s %% of the bf16 rate\n",
        format_fixed(sum_of(prefill_ops).flops / static_cast<double>(flags.prompt) * 1e-9, 2)
            .c_str(),
        format_fixed(gflops, 0).c_str(), format_fixed(100 * gflops / peaks.bf16_gflops, 1).c_str());
    print_ops("prefill op (kernel, variant)", prefill_ops, peaks, flags.ops);
  }
  print_ops("decode op (kernel, variant)", decode_ops, peaks, flags.ops);
  if (flags.engine_rate) print_engine_overhead(rates.back(), decode.rate.step_seconds);
  std::printf(
      "\nmemory: weights %s, cache %s, steps %s; peak of the process %s, before the "
      "buffers of the benchmark\n",
      format_bytes(model.weights().bytes()).c_str(),
      format_bytes(session->executor().cache().bytes()).c_str(),
      format_bytes(session->executor().memory_bytes() - session->executor().cache().bytes())
          .c_str(),
      format_bytes(peak_bytes).c_str());
  return kExitOk;
}

void add_bench_model(CLI::App& bench, BenchModelFlags& flags, GlobalFlags& globals) {
  CLI::App* sub = bench.add_subcommand("model", "Prefill and decode rates of a whole model");
  sub->add_option("-p,--prompt", flags.prompt, "Prompt tokens; 0 skips prefill")
      ->check(integer_range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("-n,--gen", flags.generate, "Decode steps")
      ->check(integer_range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("-d,--depth", flags.depth, "Tokens in the cache before decoding")
      ->check(integer_range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("-b,--batch", flags.batch, "Sequences that decode together")
      ->check(integer_range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  sub->add_option("-r,--repetitions", flags.repetitions, "Medians of this many runs")
      ->check(integer_range(1, 100))
      ->capture_default_str();
  sub->add_option("--temperature", flags.temperature,
                  "Decode with draws at this temperature in place of the largest logits")
      ->check(finite_range(0, 100))
      ->capture_default_str();
  sub->add_flag("--engine", flags.engine_rate,
                "Time decoding through scheduler and requests too, and what they add to a step");
  sub->add_option("--ops", flags.ops, "Ops listed, those that cost most first; 0: all")
      ->check(integer_range(0, 10'000))
      ->capture_default_str();
  add_engine_flags(*sub, globals.engine, kForward,
                   {OptionGroup::kModel, OptionGroup::kBuiltIn, OptionGroup::kDevice,
                    OptionGroup::kNumbers, OptionGroup::kKernels},
                   {"pin"});
}

}  // namespace fathom::cli
