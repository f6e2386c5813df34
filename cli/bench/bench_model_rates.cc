#include "cli/bench/bench_model_rates.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/io/terminal.h"
#include "fathom/base/rng.h"
#include "fathom/bench/timing/timer.h"
#include "fathom/os/clock.h"

namespace fathom::cli {

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

SamplingParams sampling_of(const BenchModelFlags& flags) {
  SamplingParams params = greedy_sampling();
  params.temperature = static_cast<float>(flags.temperature);
  params.seed = 1;
  return params;
}

Rate rate_of(std::string test, double tokens, std::vector<double> seconds, double passes) {
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {std::move(test), tokens / median, tokens / seconds.back(), tokens / seconds.front(),
          median / passes};
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocabulary, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(rng.next_below(static_cast<uint32_t>(vocabulary)));
  }
  return ids;
}

Result<Rate> time_prefill(ForwardSession& session,
                          const BenchModelFlags& flags,
                          std::span<const int32_t> tokens) {
  std::vector<double> seconds;
  for (int r = 0; r < flags.repetitions; ++r) {
    session.reset();
    const int64_t begin = monotonic_ns();
    FATHOM_TRY(session.prefill(0, tokens, LogitRows::kLast, {}));
    seconds.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-9);
  }
  return rate_of(str_cat("pp", flags.prompt), static_cast<double>(flags.prompt), seconds, 1);
}

void add_call(OpTotals& totals, const OpRecord& r, double seconds) {
  OpTotal& t = totals[str_cat(std::string_view(r.op.name), " (", std::string_view(r.kernel), ", ",
                              std::string_view(r.variant ? r.variant : "-"), ")")];
  ++t.calls;
  t.seconds += seconds;
  t.cost.flops += r.cost.flops;
  t.cost.bytes_read += r.cost.bytes_read;
  t.cost.bytes_written += r.cost.bytes_written;
  t.cost.unit = r.cost.unit;
}

Cost sum_of(const OpTotals& totals) {
  Cost sum;
  for (const auto& [name, t] : totals) {
    sum.flops += t.cost.flops;
    sum.bytes_read += t.cost.bytes_read;
    sum.bytes_written += t.cost.bytes_written;
  }
  return sum;
}

void print_ops(const char* title, const OpTotals& totals, const Peaks& peaks, int most) {
  std::vector<std::pair<std::string, OpTotal>> ops(totals.begin(), totals.end());
  std::sort(ops.begin(), ops.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double all = 0;
  for (const auto& op : ops)
    all += op.second.seconds;
  if (most > 0 && ops.size() > static_cast<size_t>(most)) ops.resize(static_cast<size_t>(most));
  MarkdownTable table({title, "ms", "share", "floor ms", "of floor", "bound"});
  for (const auto& [name, t] : ops) {
    const double memory = static_cast<double>(t.cost.bytes()) /
                          (peaks.memory_gbps(t.cost.bytes_read, t.cost.bytes_written) * 1e9);
    const double math = t.cost.flops / (peaks.compute_gflops(t.cost.unit) * 1e9);
    const double floor = std::max(memory, math);
    table.add({name, format_fixed(t.seconds * 1e3, 3),
               format_fixed(100 * t.seconds / all, 1) + " %", format_fixed(floor * 1e3, 3),
               format_fixed(t.seconds > 0 ? 100 * floor / t.seconds : 0, 0) + " %",
               memory > math ? "memory" : "compute"});
  }
  std::printf("\n%s", table.str().c_str());
}

void print_rates(const OpenedModel& opened,
                 const BenchModelFlags& flags,
                 const std::vector<Rate>& rates,
                 std::string_view backend,
                 std::string_view threads) {
  int64_t parameters = 0;
  for (const WeightSummary& s : opened.model->weights().summary())
    parameters += s.parameters;
  const std::string format = find_option("format")->get(flags.engine);
  MarkdownTable table({"model", "size", "params", "backend", "threads", "test", "t/s", "range"});
  for (const Rate& r : rates) {
    table.add({opened.title + (format.empty() ? "" : " " + format),
               format_bytes(opened.model->weights().bytes()),
               format_fixed(static_cast<double>(parameters) * 1e-9, 2) + " B", std::string(backend),
               std::string(threads), r.test, format_fixed(r.tokens_per_s, 2),
               format_fixed(r.low, 2) + " - " + format_fixed(r.high, 2)});
  }
  std::printf("%s", table.str().c_str());
}

}  // namespace fathom::cli
