#include "cli/bench/bench_model_gpu.h"

#include <algorithm>
#include <vector>

#include "cli/bench/bench_drafts.h"
#include "cli/bench/bench_engine.h"
#include "cli/bench/bench_model_rates.h"
#include "cli/io/terminal.h"
#include "fathom/bench/machine/conditions.h"
#include "fathom/bench/machine/gpu_machine.h"
#include "fathom/os/clock.h"
#include "fathom/text/figures.h"

namespace fathom::cli {
namespace {

constexpr int kOpRepetitions = 9;

Result<Rate> time_decode(ForwardSession& session,
                         const BenchModelFlags& flags,
                         int64_t batch,
                         int64_t vocabulary) {
  std::vector<double> seconds;
  std::vector<int32_t> next(static_cast<size_t>(batch));
  for (int r = -1; r < flags.repetitions; ++r) {  // the first captures and warms up
    flags.on_run(str_cat("decode", batch_label(flags, batch)));
    FATHOM_TRY(session.pretend_prefix(flags.depth, 5));
    // Fresh tokens each step, so that routing is not the same again and again.
    const auto tokens =
        random_tokens(batch * flags.generate, vocabulary, static_cast<uint64_t>(r) + 7);
    const int64_t begin = monotonic_ns();
    for (int64_t i = 0; i < flags.generate; ++i) {
      FATHOM_TRY(flags.go_on());
      FATHOM_TRY(session.decode_sampled(
          std::span(tokens).subspan(static_cast<size_t>(i * batch), next.size()),
          sampling_of(flags), next));
    }
    if (r >= 0) seconds.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-9);
  }
  return rate_of(decode_test(flags, batch), seconds, static_cast<double>(flags.generate));
}

struct OpTimes {
  OpTotals totals;
  double floor_us = 0;  // of all ops together
  double sum_us = 0;    // measured
  double step_us = 0;   // as one graph, without marks
  double one_stream_us = 0;
};

double floor_us(const Cost& cost, const Peaks& peaks) {
  const double memory = static_cast<double>(cost.bytes()) /
                        (peaks.memory_gbps(cost.bytes_read, cost.bytes_written) * 1e3);
  return std::max(memory, cost.flops / (peaks.compute_gflops(cost.unit) * 1e3));
}

template <class Timed>
Result<OpTimes> op_times(const Peaks& peaks, const Timed& timed) {
  Recorder recorder(RecordLevel::kTimed, 1 << 14);
  FATHOM_ASSIGN(const TimedStep step, timed(recorder));
  const std::vector<OpRecord> records = recorder.records();
  OpTimes out;
  out.step_us = step.step_us;
  out.one_stream_us = step.one_stream_us;
  for (size_t i = 0; i < records.size(); ++i) {
    add_call(out.totals, records[i], step.op_us[i] * 1e-6);
    out.floor_us += floor_us(records[i].cost, peaks);
    out.sum_us += step.op_us[i];
  }
  return out;
}

std::string step_text(const std::string& what, const OpTimes& ops, const Peaks& peaks) {
  const int64_t bytes = sum_of(ops.totals).bytes();
  const double streaming_us = static_cast<double>(bytes) / (peaks.copy_gbps * 1e3);
  int64_t calls = 0;
  for (const auto& entry : ops.totals)
    calls += entry.second.calls;
  const auto us = [](double value) { return format_fixed(value, 1) + " us"; };
  return str_cat(what, ": a step takes ", us(ops.step_us), " as one graph (", us(ops.one_stream_us),
                 " in one stream; ", us(ops.sum_us), " op by op, with a mark after each)\n", what,
                 ": its ", format_bytes(bytes), " at the copy rate take ", us(streaming_us), ", ",
                 format_fixed(100 * streaming_us / ops.step_us, 1),
                 " % of the step; the floors of its ", calls, " ops sum to ", us(ops.floor_us),
                 ", the step is ", format_fixed(ops.step_us / ops.floor_us, 2), " times that\n");
}

// Everything that a session of `batch` sequences measures, into the report: prefill with the first
// session alone.
Status bench_batch(const Model& model,
                   const Machine& machine,
                   const BenchModelFlags& flags,
                   int64_t batch,
                   ModelReport& report) {
  const bool first = report.rates.empty();
  const bool prefills = first && flags.prompt > 0;
  const int64_t vocabulary = model.config().vocab_size;
  SessionOptions options = session_options(flags, batch);
  options.chunk = std::max<int64_t>(options.chunk, std::min<int64_t>(flags.prompt, 4096));
  FATHOM_ASSIGN(const auto session, ForwardSession::create(model, machine.compute(), options));

  const auto prompt = random_tokens(flags.prompt, vocabulary, 1);
  if (prefills) {
    FATHOM_TRY(session->prefill(0, prompt, LogitRows::kLast, {}));
    FATHOM_ASSIGN(Rate prefill, time_prefill(*session, flags, prompt));
    report.rates.push_back(std::move(prefill));
  }
  FATHOM_ASSIGN(Rate decode, time_decode(*session, flags, batch, vocabulary));
  const double decode_seconds = decode.step_seconds;
  report.rates.push_back(std::move(decode));
  if (flags.engine_rate) {
    FATHOM_ASSIGN(Rate engine, time_engine(model, machine.compute(), flags, batch));
    report.rates.push_back(std::move(engine));
  }
  const std::string label = batch_label(flags, batch);
  std::string& text = report.text;
  str_append(
      text, str_cat(first ? "" : "\n", "decode", label, ": ", format_fixed(decode_seconds * 1e6, 1),
                    " us a step with metadata, choice and host; cuda graphs ",
                    flags.engine.cuda_graphs ? "on" : "off", " (", session->executor().num_graphs(),
                    " captured)\n"));

  FATHOM_TRY(session->pretend_prefix(flags.depth, 5));
  const auto tokens = random_tokens(batch, vocabulary, 3);
  FATHOM_ASSIGN(OpTimes decode_ops, op_times(report.peaks, [&](Recorder& recorder) {
                  return session->time_decode(tokens, recorder, kOpRepetitions);
                }));
  text += step_text(str_cat("decode", label), decode_ops, report.peaks);
  if (prefills && flags.prompt <= options.chunk) {
    session->reset();
    FATHOM_ASSIGN(OpTimes prefill_ops, op_times(report.peaks, [&](Recorder& recorder) {
                    return session->time_prefill(0, prompt, LogitRows::kLast, recorder,
                                                 kOpRepetitions);
                  }));
    text += step_text("prefill", prefill_ops, report.peaks);
    text += ops_table("prefill op (kernel, variant)", prefill_ops.totals, report.peaks, flags.ops);
    report.ops.push_back({"prefill", 1, std::move(prefill_ops.totals)});
  }
  text += ops_table(str_cat("decode op", label, " (kernel, variant)"), decode_ops.totals,
                    report.peaks, flags.ops);
  report.ops.push_back({"decode", batch, std::move(decode_ops.totals)});
  if (flags.engine_rate) text += engine_overhead_text(report.rates.back(), decode_seconds);
  if (flags.engine.speculative != Speculative::kOff) {
    FATHOM_ASSIGN(const std::string drafts, drafts_text(model, machine.compute(), flags, batch));
    text += drafts;
  }
  const int64_t cache = session->executor().cache().bytes();
  str_append(text,
             str_cat("\nmemory of the GPU", label, ": weights ",
                     format_memory(model.weights().bytes()), ", cache ", format_memory(cache),
                     ", steps ", format_memory(session->executor().memory_bytes() - cache), "\n"));
  return {};
}

}  // namespace

Status bench_model_on_gpu(const BenchModelFlags& flags,
                          const Machine& machine,
                          const OpenedModel& opened,
                          ModelReport& report) {
  const DeviceInfo& gpu = machine.gpu->info();
  report =
      start_model_report(opened, flags, bench_conditions(machine.isa, machine.pool->size(), gpu));
  report.backend = gpu.name;
  report.threads = "-";
  FATHOM_ASSIGN(report.peaks, measure_gpu_peaks(gpu, machine.gpu->stream()));
  str_append(report.text, str_cat("\ncopy ", format_fixed(report.peaks.copy_gbps, 0),
                                  " GB/s, read ", format_fixed(report.peaks.read_gbps, 0),
                                  " GB/s (", report.peaks.source, ")\n"));
  for (const int64_t batch : flags.batch)
    FATHOM_TRY(bench_batch(*opened.model, machine, flags, batch, report));
  return {};
}

}  // namespace fathom::cli
