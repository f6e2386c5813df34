#include "cli/bench/bench_model.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "cli/bench/bench_drafts.h"
#include "cli/bench/bench_engine.h"
#include "cli/bench/bench_model_gpu.h"
#include "cli/bench/bench_model_rates.h"
#include "cli/config/engine_flags.h"
#include "cli/flags.h"
#include "cli/integers.h"
#include "cli/io/interrupt.h"
#include "cli/io/progress.h"
#include "cli/io/terminal.h"
#include "cli/io/text_output.h"
#include "fathom/base/log.h"
#include "fathom/bench/machine/conditions.h"
#include "fathom/bench/machine/peaks.h"
#include "fathom/bench/timing/timer.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/clock.h"
#include "fathom/os/memory.h"
#include "fathom/runtime/forward_session.h"
#include "fathom/text/figures.h"

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
                               int64_t batch,
                               std::span<const int32_t> prefix,
                               int64_t vocabulary,
                               const ReadProbe& memory) {
  constexpr double kProbeSeconds = 0.1;
  DecodeRate out;
  std::vector<double> seconds;
  std::vector<int32_t> next(static_cast<size_t>(batch));
  double before = memory.gbps(kProbeSeconds);
  for (int r = 0; r < flags.repetitions; ++r) {
    flags.on_run(str_cat("decode", batch_label(flags, batch)));
    session.reset();
    for (int64_t s = 0; s < batch && !prefix.empty(); ++s) {
      FATHOM_TRY(session.prefill(s, prefix, LogitRows::kNone, {}));
    }
    // Fresh tokens each step, so that routing is not the same again and again.
    const auto tokens =
        random_tokens(batch * flags.generate, vocabulary, static_cast<uint64_t>(r) + 7);
    const int64_t begin = monotonic_ns();
    for (int64_t i = 0; i < flags.generate; ++i) {
      FATHOM_TRY(flags.go_on());
      const auto step =
          std::span(tokens).subspan(static_cast<size_t>(i * batch), static_cast<size_t>(batch));
      FATHOM_TRY(session.decode_sampled(step, sampling_of(flags), next));
    }
    seconds.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-9);
    const double after = memory.gbps(kProbeSeconds);
    out.read_gbps.push_back(std::max(before, after));
    out.readable_bytes.push_back(out.read_gbps.back() * 1e9 * seconds.back() /
                                 static_cast<double>(flags.generate));
    before = after;
  }
  out.rate = rate_of(decode_test(flags, batch), seconds, static_cast<double>(flags.generate));
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

// Everything that a session of `batch` sequences measures, into the report: the rates of prefill
// with the first session alone.
Status bench_batch(const Model& model,
                   const Machine& machine,
                   const BenchModelFlags& flags,
                   int64_t batch,
                   ModelReport& report) {
  const bool first = report.rates.empty();
  const bool prefills = first && flags.prompt > 0;
  ThreadPool& pool = *machine.pool;
  const int64_t vocabulary = model.config().vocab_size;
  FATHOM_ASSIGN(const auto session,
                ForwardSession::create(model, machine.compute(), session_options(flags, batch)));
  const auto prompt = random_tokens(flags.prompt, vocabulary, 1);
  const auto prefix = random_tokens(flags.depth, vocabulary, 2);
  const auto tokens = random_tokens(batch, vocabulary, 3);
  // One pass of each kind touches all memory that the model needs, before the benchmark takes
  // buffers of its own.
  if (prefills) FATHOM_TRY(session->prefill(0, prompt, LogitRows::kLast, {}));
  session->reset();
  FATHOM_TRY(session->decode(tokens).status());
  const int64_t peak_bytes = peak_rss_bytes();
  if (first) {
    FATHOM_ASSIGN(report.peaks, measure_peaks(pool, machine.isa, PeakOptions{}));
    str_append(report.text,
               str_cat("\nmeasured in this run: read ", format_fixed(report.peaks.read_gbps, 1),
                       " GB/s before the runs, bf16 (", report.peaks.bf16_unit, ") ",
                       format_fixed(report.peaks.bf16_gflops, 0), " GFLOP/s\n"));
  }
  double prefill_rate = 0;
  if (prefills) {
    FATHOM_ASSIGN(Rate prefill, time_prefill(*session, flags, prompt));
    prefill_rate = prefill.tokens_per_s;
    report.rates.push_back(std::move(prefill));
  }
  DecodeRate decode;
  {
    FATHOM_ASSIGN(const ReadProbe memory, ReadProbe::create(pool));
    FATHOM_ASSIGN(decode, time_decode(*session, flags, batch, prefix, vocabulary, memory));
  }
  report.rates.push_back(decode.rate);
  if (flags.engine_rate) {
    FATHOM_ASSIGN(Rate engine, time_engine(model, machine.compute(), flags, batch));
    report.rates.push_back(std::move(engine));
  }

  session->reset();
  for (int64_t s = 0; s < batch && !prefix.empty(); ++s) {
    FATHOM_TRY(session->prefill(s, prefix, LogitRows::kNone, {}));
  }
  FATHOM_ASSIGN(OpTotals decode_ops,
                record_pass(*session, [&] { return session->decode(tokens).status(); }));
  const std::string label = batch_label(flags, batch);
  const auto step_bytes = static_cast<double>(sum_of(decode_ops).bytes());
  const auto [low, high] = std::minmax_element(decode.read_gbps.begin(), decode.read_gbps.end());
  std::string& text = report.text;
  str_append(text, str_cat(first ? "" : "\n", "decode", label, ": ",
                           format_bytes(sum_of(decode_ops).bytes()), " a step, ",
                           format_fixed(step_bytes / decode.rate.step_seconds * 1e-9, 1), " GB/s, ",
                           format_fixed(100 * step_bytes / median_of(decode.readable_bytes), 1),
                           " % of the read rate right beside each run (", format_fixed(*low, 1),
                           " to ", format_fixed(*high, 1), " GB/s)\n"));
  if (prefills) {
    session->reset();
    FATHOM_ASSIGN(OpTotals prefill_ops, record_pass(*session, [&] {
                    return session->prefill(0, prompt, LogitRows::kLast, {});
                  }));
    const double flops = sum_of(prefill_ops).flops / static_cast<double>(flags.prompt);
    const double gflops = flops * prefill_rate * 1e-9;
    str_append(text, str_cat("prefill: ", format_fixed(flops * 1e-9, 2), " GFLOP a token, ",
                             format_fixed(gflops, 0), " GFLOP/s, ",
                             format_fixed(100 * gflops / report.peaks.bf16_gflops, 1),
                             " % of the bf16 rate\n"));
    text += ops_table("prefill op (kernel, variant)", prefill_ops, report.peaks, flags.ops);
    report.ops.push_back({"prefill", 1, std::move(prefill_ops)});
  }
  text += ops_table(str_cat("decode op", label, " (kernel, variant)"), decode_ops, report.peaks,
                    flags.ops);
  report.ops.push_back({"decode", batch, std::move(decode_ops)});
  if (flags.engine_rate)
    text += engine_overhead_text(report.rates.back(), decode.rate.step_seconds);
  if (flags.engine.speculative != Speculative::kOff) {
    FATHOM_ASSIGN(const std::string drafts, drafts_text(model, machine.compute(), flags, batch));
    text += drafts;
  }
  const int64_t cache = session->executor().cache().bytes();
  str_append(text, str_cat("\nmemory", label, ": weights ", format_memory(model.weights().bytes()),
                           ", cache ", format_memory(cache), ", steps ",
                           format_memory(session->executor().memory_bytes() - cache)));
  if (first) {
    str_append(text, str_cat("; peak of the process ", format_memory(peak_bytes),
                             ", before the buffers of the benchmark"));
  }
  text += '\n';
  return {};
}

Status bench_model_on_cpu(const BenchModelFlags& flags,
                          const Machine& machine,
                          const OpenedModel& opened,
                          ModelReport& report) {
  report = start_model_report(opened, flags, bench_conditions(machine.isa, machine.pool->size()));
  report.backend = "CPU";
  report.threads = str_cat(machine.pool->size());
  for (const int64_t batch : flags.batch)
    FATHOM_TRY(bench_batch(*opened.model, machine, flags, batch, report));
  return {};
}

// What an interrupted run has not measured: the rows of a whole one begin with those that it has.
std::string left_out(const BenchModelFlags& flags, const ModelReport& report) {
  const std::vector<std::string> all = tests_of(flags);
  const size_t measured = report.rates.size();
  if (measured == all.size()) return "interrupted: the rows are whole, what follows them is not";
  std::string names;
  for (size_t i = measured; i < all.size(); ++i)
    str_append(names, str_cat(names.empty() ? "" : ", ", all[i]));
  return str_cat("interrupted: ", measured, " of ", all.size(),
                 " rows are measured, left out: ", names);
}

}  // namespace

Result<int> bench_model(const BenchModelFlags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(const BenchFormat format, parse_bench_format(flags.output));
  if (!flags.out_file.empty()) FATHOM_TRY(check_writable(flags.out_file));
  FATHOM_ASSIGN(const Machine machine, set_up_machine(flags.engine));
  FATHOM_ASSIGN(const OpenedModel opened, open_for(flags.engine, globals, machine,
                                                   flags.engine.speculative == Speculative::kMtp));
  BenchModelFlags watched = flags;
  Progress progress("timing", "runs", globals.quiet);
  const int64_t warm_ups = machine.gpu == nullptr ? 0 : 1;
  const auto batches = static_cast<int64_t>(flags.batch.size());
  const int64_t total =
      (flags.prompt > 0 ? flags.repetitions : 0) +
      batches * (flags.repetitions + warm_ups + (flags.engine_rate ? flags.repetitions + 1 : 0));
  watched.on_run = [&, done = int64_t{0}](std::string_view what) mutable {
    // From here on the first Ctrl-C ends the run with the rows that there are; a second at once
    // ends the program, as one does while ceilings are measured.
    if (done == 0) install_interrupt_handler();
    progress.update(done++, total, what);
    log_debug("timing ", what);
  };
  watched.go_on = [] { return take_interrupt() ? cancelled("interrupted") : Status{}; };
  ModelReport report;
  Status ended = machine.gpu == nullptr ? bench_model_on_cpu(watched, machine, opened, report)
                                        : bench_model_on_gpu(watched, machine, opened, report);
  progress.erase();
  const bool interrupted = ended.code() == StatusCode::kCancelled;
  if (!interrupted) FATHOM_TRY(std::move(ended));
  const bool any = !interrupted || !report.rates.empty();
  if (any) FATHOM_TRY(emit(write_model_report(report, format), flags.out_file));
  if (!interrupted) return kExitOk;
  log_warn(left_out(flags, report));
  return kExitInterrupted;
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
  sub->add_option("-b,--batch", flags.batch,
                  "Sequences that decode together; several, with commas, give a block of rows each")
      ->delimiter(',')
      ->check(integer_range(int64_t{1}, int64_t{4096}))
      ->default_str("1");
  sub->add_option("-r,--repetitions", flags.repetitions, "Medians of this many runs")
      ->check(integer_range(1, 100))
      ->capture_default_str();
  sub->add_option("--temperature", flags.temperature,
                  "Decode with draws at this temperature in place of the largest logits")
      ->check(finite_range(0, 100))
      ->capture_default_str();
  sub->add_option("--simulate-acceptance", flags.simulated_acceptance,
                  "With --speculative: take each guess with this probability, whatever the model "
                  "draws; for random weights, whose guesses mean nothing")
      ->type_name("X")
      ->check(finite_range(0, 1));
  sub->add_flag("--engine", flags.engine_rate,
                "Time decoding through scheduler and requests too, and what they add to a step");
  sub->add_option("--ops", flags.ops, "Ops listed, those that cost most first; 0: all")
      ->check(integer_range(0, 10'000))
      ->capture_default_str();
  sub->add_option("-o,--output", flags.output, "md, csv, json or jsonl")->capture_default_str();
  sub->add_flag_callback(
      "--json", [&flags] { flags.output = "json"; },
      "The same as --output json (fathom.bench.model/1)");
  sub->add_option("--out-file", flags.out_file, "Write to this file");
  add_engine_flags(*sub, globals.engine, kForward,
                   {OptionGroup::kModel, OptionGroup::kBuiltIn, OptionGroup::kDevice,
                    OptionGroup::kNumbers, OptionGroup::kDrafts, OptionGroup::kKernels},
                   {"pin"});
}

}  // namespace fathom::cli
