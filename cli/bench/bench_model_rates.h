// What `bench model` measures and prints, on whatever it runs.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/bench_model.h"
#include "fathom/bench/machine/peaks.h"
#include "fathom/runtime/forward_session.h"
#include "fathom/trace/record.h"

namespace fathom::cli {

/// Tokens a second of one test.
struct Rate {
  std::string test;
  double tokens_per_s = 0;  // median
  double low = 0;
  double high = 0;
  double step_seconds = 0;  // median of one pass
};

/// Of the seconds of several runs of `passes` passes each.
Rate rate_of(std::string test, double tokens, std::vector<double> seconds, double passes);

double median_of(std::vector<double> values);

/// What each decoded row is sampled with.
SamplingParams sampling_of(const BenchModelFlags& flags);

std::vector<int32_t> random_tokens(int64_t count, int64_t vocabulary, uint64_t seed);

/// Prompts of sequence 0, each from nothing.
Result<Rate> time_prefill(ForwardSession& session,
                          const BenchModelFlags& flags,
                          std::span<const int32_t> tokens);

/// All calls of one op by one variant in a pass.
struct OpTotal {
  int64_t calls = 0;
  double seconds = 0;
  Cost cost;
};

/// By "op (kernel, variant)".
using OpTotals = std::map<std::string, OpTotal>;

void add_call(OpTotals& totals, const OpRecord& record, double seconds);

Cost sum_of(const OpTotals& totals);

/// The `most` ops (0: all) that took longest, beside what the roof allows.
void print_ops(const char* title, const OpTotals& totals, const Peaks& peaks, int most);

void print_rates(const OpenedModel& opened,
                 const BenchModelFlags& flags,
                 const std::vector<Rate>& rates,
                 std::string_view backend,
                 std::string_view threads);

}  // namespace fathom::cli
