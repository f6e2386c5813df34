// Figures of a load run, defined as `vllm bench serve` defines them (docs/benchmarking.md).
//
//   TTFT  sending the request -> its first tokens
//   ITL   between two events with tokens of one request, all requests together
//   TPOT  (E2EL - TTFT) / (output tokens - 1), of requests with two tokens or more
//   E2EL  sending the request -> its last event with a choice
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/serve/load/load_record.h"

namespace fathom::serve {

/// Percentiles are interpolated between neighbours, the deviation is of the population (numpy's
/// defaults). All zero without values.
struct Spread {
  int64_t count = 0;
  double mean = 0, median = 0, std = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0;
};

/// `values` in any order.
Spread spread_of(std::vector<double> values);

/// Upper limits in ms for a request to count as good.
struct GoodputTargets {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;

  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

/// {"ttft:500", "tpot:30"}. Errors: InvalidArgument, naming the word.
Result<GoodputTargets> parse_goodput(const std::vector<std::string>& words);

/// Sums of what the server counted, over requests that say so.
struct CountedSums {
  int64_t prompt = 0, completion = 0, cached = 0, reasoning = 0, drafted = 0, accepted = 0;
  int64_t with_prompt = 0, with_cached = 0, with_reasoning = 0, with_drafted = 0,
          with_accepted = 0;     ///< requests
  int64_t prompt_of_cached = 0;  ///< prompt tokens of requests that name cached ones
};

/// One turn of the agent scenario, over all sessions.
struct TurnMetrics {
  int64_t turn = 0;
  int64_t completed = 0;
  Spread ttft_ms;
  double prompt_tokens = 0;            ///< mean
  double output_tokens = 0;            ///< mean
  std::optional<double> cached_share;  ///< of prompt tokens; absent where the server does not say
};

struct LoadMetrics {
  double duration_s = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  double request_throughput = 0;  ///< of completed ones, a second
  double request_goodput = 0;
  double output_throughput = 0;
  double total_token_throughput = 0;
  double max_output_tokens_per_s = 0;  ///< events with tokens in the fullest second
  int64_t max_concurrent_requests = 0;
  Spread ttft_ms, tpot_ms, itl_ms, e2el_ms, queue_ms;
  CountedSums counted;
  std::map<std::string, int64_t> errors;
  std::vector<TurnMetrics> turns;
  Spread session_s;      ///< first request of a session to its last token, of whole sessions
  int64_t sessions = 0;  ///< whole ones
};

/// `turns_per_session` of the agent scenario; 0 elsewhere.
LoadMetrics measure_load(std::span<const LoadRecord> records,
                         double duration_s,
                         const GoodputTargets& targets,
                         int64_t turns_per_session = 0);

}  // namespace fathom::serve
