// What `bench model` measures on whatever it runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/bench_model_report.h"
#include "fathom/runtime/forward_session.h"

namespace fathom::cli {

/// Of the seconds of several runs, each of `passes` passes over `rate.tokens` tokens of
/// `rate.batch` sequences: fills the figures.
Rate rate_of(Rate rate, std::vector<double> seconds, double passes);

/// The test of decoding: "tg128", "engine tg128 x 8 @ d64".
Rate decode_test(const BenchModelFlags& flags, int64_t batch, std::string_view prefix = {});

/// The names of all rows of the benchmark, in their order.
std::vector<std::string> tests_of(const BenchModelFlags& flags);

/// Room for `batch` sequences through all that the benchmark has them do.
SessionOptions session_options(const BenchModelFlags& flags, int64_t batch);

double median_of(std::vector<double> values);

/// What each decoded row is sampled with.
SamplingParams sampling_of(const BenchModelFlags& flags);

std::vector<int32_t> random_tokens(int64_t count, int64_t vocabulary, uint64_t seed);

/// Prompts of sequence 0, each from nothing.
Result<Rate> time_prefill(ForwardSession& session,
                          const BenchModelFlags& flags,
                          std::span<const int32_t> tokens);

/// " of 8 sequences" where the benchmark has several batches, to tell their paragraphs apart.
std::string batch_label(const BenchModelFlags& flags, int64_t batch);

}  // namespace fathom::cli
