#include "cli/bench/bench_model_rates.h"

#include <algorithm>
#include <utility>

#include "fathom/base/rng.h"
#include "fathom/base/str_cat.h"
#include "fathom/bench/timing/timer.h"
#include "fathom/os/clock.h"

namespace fathom::cli {
namespace {

Rate prefill_test(const BenchModelFlags& flags) {
  return {
      .test = str_cat("pp", flags.prompt), .phase = "prefill", .batch = 1, .tokens = flags.prompt};
}

}  // namespace

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

Rate rate_of(Rate rate, std::vector<double> seconds, double passes) {
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(rate.batch * rate.tokens);
  rate.tokens_per_s = tokens / median;
  rate.low = tokens / seconds.back();
  rate.high = tokens / seconds.front();
  rate.step_seconds = median / passes;
  return rate;
}

Rate decode_test(const BenchModelFlags& flags, int64_t batch, std::string_view prefix) {
  std::string name = str_cat(prefix, "tg", flags.generate);
  if (batch > 1) str_append(name, str_cat(" x ", batch));
  if (flags.depth > 0) str_append(name, str_cat(" @ d", flags.depth));
  return {.test = std::move(name),
          .phase = prefix.empty() ? "decode" : "engine decode",
          .batch = batch,
          .tokens = flags.generate,
          .depth = flags.depth};
}

std::vector<std::string> tests_of(const BenchModelFlags& flags) {
  std::vector<std::string> names;
  if (flags.prompt > 0) names.push_back(prefill_test(flags).test);
  for (const int64_t batch : flags.batch) {
    names.push_back(decode_test(flags, batch).test);
    if (flags.engine_rate) names.push_back(decode_test(flags, batch, "engine ").test);
  }
  return names;
}

SessionOptions session_options(const BenchModelFlags& flags, int64_t batch) {
  SessionOptions options;
  options.sequences = batch;
  options.max_tokens = std::max(flags.prompt, flags.depth + flags.generate + 1);
  options.cuda_graphs = flags.engine.cuda_graphs ? CudaGraphs::kOn : CudaGraphs::kOff;
  return options;
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
    FATHOM_TRY(flags.go_on());
    flags.on_run("prefill");
    session.reset();
    const int64_t begin = monotonic_ns();
    FATHOM_TRY(session.prefill(0, tokens, LogitRows::kLast, {}));
    seconds.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-9);
  }
  return rate_of(prefill_test(flags), seconds, 1);
}

std::string batch_label(const BenchModelFlags& flags, int64_t batch) {
  if (flags.batch.size() < 2) return {};
  return str_cat(" of ", batch, batch == 1 ? " sequence" : " sequences");
}

}  // namespace fathom::cli
