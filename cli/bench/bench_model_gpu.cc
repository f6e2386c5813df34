#include "cli/bench/bench_model_gpu.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cli/bench/bench_drafts.h"
#include "cli/bench/bench_engine.h"
#include "cli/bench/bench_model_rates.h"
#include "cli/io/terminal.h"
#include "fathom/bench/machine/gpu_machine.h"
#include "fathom/os/clock.h"

namespace fathom::cli {
namespace {

constexpr int kOpRepetitions = 9;

Result<Rate> time_decode(ForwardSession& session,
                         const BenchModelFlags& flags,
                         int64_t vocabulary) {
  std::vector<double> seconds;
  std::vector<int32_t> next(static_cast<size_t>(flags.batch));
  for (int r = -1; r < flags.repetitions; ++r) {  // the first captures and warms up
    FATHOM_TRY(session.pretend_prefix(flags.depth, 5));
    // Fresh tokens each step, so that routing is not the same again and again.
    const auto tokens =
        random_tokens(flags.batch * flags.generate, vocabulary, static_cast<uint64_t>(r) + 7);
    const int64_t begin = monotonic_ns();
    for (int64_t i = 0; i < flags.generate; ++i) {
      FATHOM_TRY(session.decode_sampled(
          std::span(tokens).subspan(static_cast<size_t>(i * flags.batch), next.size()),
          sampling_of(flags), next));
    }
    if (r >= 0) seconds.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-9);
  }
  std::string name = str_cat("tg", flags.generate);
  if (flags.batch > 1) str_append(name, str_cat(" x ", flags.batch));
  if (flags.depth > 0) str_append(name, str_cat(" @ d", flags.depth));
  return rate_of(std::move(name), static_cast<double>(flags.generate * flags.batch), seconds,
                 static_cast<double>(flags.generate));
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

void print_step(const char* what, const OpTimes& ops, const Peaks& peaks) {
  const int64_t bytes = sum_of(ops.totals).bytes();
  const double streaming_us = static_cast<double>(bytes) / (peaks.copy_gbps * 1e3);
  int64_t calls = 0;
  for (const auto& entry : ops.totals)
    calls += entry.second.calls;
  const auto us = [](double value) { return format_fixed(value, 1) + " us"; };
  const std::string lines =
      str_cat(what, ": a step takes ", us(ops.step_us), " as one graph (", us(ops.one_stream_us),
              " in one stream; ", us(ops.sum_us), " op by op, with a mark after each)\n", what,
              ": its ", format_bytes(bytes), " at the copy rate take ", us(streaming_us), ", ",
              format_fixed(100 * streaming_us / ops.step_us, 1),
              " % of the step; the floors of its ", calls, " ops sum to ", us(ops.floor_us),
              ", the step is ", format_fixed(ops.step_us / ops.floor_us, 2), " times that\n");
  std::printf("%s", lines.c_str());
}

}  // namespace

Result<int> bench_model_on_gpu(const BenchModelFlags& flags,
                               const Machine& machine,
                               const OpenedModel& opened) {
  const Model& model = *opened.model;
  const int64_t vocabulary = model.config().vocab_size;
  SessionOptions options;
  options.sequences = flags.batch;
  options.max_tokens = std::max(flags.prompt, flags.depth + flags.generate + 1);
  options.chunk = std::max<int64_t>(options.chunk, std::min<int64_t>(flags.prompt, 4096));
  options.cuda_graphs = flags.engine.cuda_graphs ? CudaGraphs::kOn : CudaGraphs::kOff;
  FATHOM_ASSIGN(const Peaks peaks, measure_gpu_peaks(machine.gpu->info(), machine.gpu->stream()));
  FATHOM_ASSIGN(const auto session, ForwardSession::create(model, machine.compute(), options));

  std::vector<Rate> rates;
  const auto prompt = random_tokens(flags.prompt, vocabulary, 1);
  if (flags.prompt > 0) {
    FATHOM_TRY(session->prefill(0, prompt, LogitRows::kLast, {}));
    FATHOM_ASSIGN(Rate prefill, time_prefill(*session, flags, prompt));
    rates.push_back(std::move(prefill));
  }
  FATHOM_ASSIGN(Rate decode, time_decode(*session, flags, vocabulary));
  const double decode_seconds = decode.step_seconds;
  rates.push_back(std::move(decode));
  if (flags.engine_rate) {
    FATHOM_ASSIGN(Rate engine, time_engine(model, machine.compute(), flags));
    rates.push_back(std::move(engine));
  }
  print_rates(opened, flags, rates, machine.gpu->info().name, "-");
  std::printf("\ncopy %s GB/s, read %s GB/s (%s)\n", format_fixed(peaks.copy_gbps, 0).c_str(),
              format_fixed(peaks.read_gbps, 0).c_str(), peaks.source.c_str());
  std::printf(
      "decode: %s us a step with metadata, choice and host; cuda graphs %s (%lld captured)\n",
      format_fixed(decode_seconds * 1e6, 1).c_str(), flags.engine.cuda_graphs ? "on" : "off",
      static_cast<long long>(session->executor().num_graphs()));

  FATHOM_TRY(session->pretend_prefix(flags.depth, 5));
  const auto tokens = random_tokens(flags.batch, vocabulary, 3);
  FATHOM_ASSIGN(const OpTimes decode_ops, op_times(peaks, [&](Recorder& recorder) {
                  return session->time_decode(tokens, recorder, kOpRepetitions);
                }));
  print_step("decode", decode_ops, peaks);
  if (flags.prompt > 0 && flags.prompt <= options.chunk) {
    session->reset();
    FATHOM_ASSIGN(const OpTimes prefill_ops, op_times(peaks, [&](Recorder& recorder) {
                    return session->time_prefill(0, prompt, LogitRows::kLast, recorder,
                                                 kOpRepetitions);
                  }));
    print_step("prefill", prefill_ops, peaks);
    print_ops("prefill op (kernel, variant)", prefill_ops.totals, peaks, flags.ops);
  }
  print_ops("decode op (kernel, variant)", decode_ops.totals, peaks, flags.ops);
  if (flags.engine_rate) print_engine_overhead(rates.back(), decode_seconds);
  if (flags.engine.speculative != Speculative::kOff) {
    FATHOM_TRY(print_drafts(model, machine.compute(), flags));
  }
  std::printf("\nmemory of the GPU: weights %s, cache %s, steps %s\n",
              format_bytes(model.weights().bytes()).c_str(),
              format_bytes(session->executor().cache().bytes()).c_str(),
              format_bytes(session->executor().memory_bytes() - session->executor().cache().bytes())
                  .c_str());
  return kExitOk;
}

}  // namespace fathom::cli
