#include "fathom/serve/load/load_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "fathom/base/str_cat.h"

namespace fathom::serve {
namespace {

constexpr double kMs = 1e-6;  // of a nanosecond

double ms(int64_t ns) {
  return static_cast<double>(ns) * kMs;
}

double percentile(const std::vector<double>& sorted, double percent) {
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

double tpot_ms(const LoadRecord& r) {
  if (r.output_tokens < 2) return 0;
  return ms(r.latency_ns - r.ttft_ns) / static_cast<double>(r.output_tokens - 1);
}

bool is_good(const LoadRecord& r, const GoodputTargets& targets) {
  const auto within = [](double value, const std::optional<double>& limit) {
    return !limit || value <= *limit;
  };
  return within(ms(r.ttft_ns), targets.ttft_ms) && within(tpot_ms(r), targets.tpot_ms) &&
         within(ms(r.latency_ns), targets.e2el_ms);
}

void add_counted(const CountedTokens& counted, CountedSums& sums) {
  const auto add = [](const std::optional<int64_t>& value, int64_t& sum, int64_t& with) {
    if (!value) return;
    sum += *value;
    ++with;
  };
  add(counted.prompt, sums.prompt, sums.with_prompt);
  add(counted.cached, sums.cached, sums.with_cached);
  add(counted.reasoning, sums.reasoning, sums.with_reasoning);
  add(counted.drafted, sums.drafted, sums.with_drafted);
  add(counted.accepted, sums.accepted, sums.with_accepted);
  sums.completion += counted.completion.value_or(0);
  if (counted.cached) sums.prompt_of_cached += counted.prompt.value_or(0);
}

// The fullest second, and the most requests at once.
void measure_peaks(std::span<const LoadRecord> records, LoadMetrics& out) {
  std::vector<int64_t> token_ns;
  std::vector<std::pair<int64_t, int>> changes;
  for (const LoadRecord& r : records) {
    if (!r.ok) continue;
    int64_t at = r.start_ns + r.ttft_ns;
    token_ns.push_back(at);
    for (const int64_t gap : r.itl_ns)
      token_ns.push_back(at += gap);
    changes.emplace_back(r.start_ns, 1);
    changes.emplace_back(r.start_ns + r.latency_ns, -1);
  }
  if (changes.empty()) return;
  std::sort(changes.begin(), changes.end());  // those that leave come before those that begin
  int64_t now = 0;
  for (const auto& [at, change] : changes) {
    now += change;
    out.max_concurrent_requests = std::max(out.max_concurrent_requests, now);
  }
  constexpr int64_t kSecond = 1'000'000'000;
  std::map<int64_t, int64_t> of_second;
  for (const int64_t at : token_ns)
    ++of_second[(at - changes.front().first) / kSecond];
  for (const auto& [second, tokens] : of_second)
    out.max_output_tokens_per_s =
        std::max(out.max_output_tokens_per_s, static_cast<double>(tokens));
}

void measure_turns(std::span<const LoadRecord> records,
                   int64_t turns_per_session,
                   LoadMetrics& out) {
  struct Session {
    int64_t turns = 0;
    int64_t begin_ns = INT64_MAX;
    int64_t end_ns = 0;
  };

  std::map<int64_t, Session> sessions;
  for (int64_t turn = 0; turn < turns_per_session; ++turn) {
    std::vector<double> ttfts;
    CountedSums sums;
    int64_t prompt = 0, output = 0;
    for (const LoadRecord& r : records) {
      if (!r.ok || r.turn != turn) continue;
      ttfts.push_back(ms(r.ttft_ns));
      add_counted(r.counted, sums);
      prompt += r.prompt_tokens;
      output += r.output_tokens;
      Session& session = sessions[r.session];
      ++session.turns;
      session.begin_ns = std::min(session.begin_ns, r.start_ns);
      session.end_ns = std::max(session.end_ns, r.start_ns + r.latency_ns);
    }
    if (ttfts.empty()) continue;
    const double n = static_cast<double>(ttfts.size());
    TurnMetrics row{.turn = turn,
                    .completed = static_cast<int64_t>(ttfts.size()),
                    .ttft_ms = spread_of(ttfts),
                    .prompt_tokens = static_cast<double>(prompt) / n,
                    .output_tokens = static_cast<double>(output) / n,
                    .cached_share = {}};
    if (sums.prompt_of_cached > 0) {
      row.cached_share =
          static_cast<double>(sums.cached) / static_cast<double>(sums.prompt_of_cached);
    }
    out.turns.push_back(std::move(row));
  }
  std::vector<double> session_s;
  for (const auto& [id, session] : sessions) {
    if (session.turns < turns_per_session) continue;
    session_s.push_back(static_cast<double>(session.end_ns - session.begin_ns) * 1e-9);
  }
  out.sessions = static_cast<int64_t>(session_s.size());
  out.session_s = spread_of(session_s);
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  Spread s{.count = static_cast<int64_t>(values.size())};
  s.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double v : values)
    squares += (v - s.mean) * (v - s.mean);
  s.std = std::sqrt(squares / n);
  s.median = s.p50 = percentile(values, 50);
  s.p90 = percentile(values, 90);
  s.p95 = percentile(values, 95);
  s.p99 = percentile(values, 99);
  return s;
}

Result<GoodputTargets> parse_goodput(const std::vector<std::string>& words) {
  GoodputTargets targets;
  for (const std::string& word : words) {
    const size_t colon = std::min(word.find(':'), word.size());
    const std::string name = word.substr(0, colon);
    std::optional<double>* const to = name == "ttft"   ? &targets.ttft_ms
                                      : name == "tpot" ? &targets.tpot_ms
                                      : name == "e2el" ? &targets.e2el_ms
                                                       : nullptr;
    double value = 0;
    const char* const end = word.data() + word.size();
    const char* const begin = word.data() + std::min(colon + 1, word.size());
    const auto [at, error] = std::from_chars(begin, end, value);
    const bool number = error == std::errc{} && at == end && std::isfinite(value) && value >= 0;
    if (to == nullptr || !number) {
      return invalid_argument(str_cat("--goodput is '", word,
                                      "', expected ttft:MS, tpot:MS or e2el:MS with a time in "
                                      "milliseconds"));
    }
    *to = value;
  }
  return targets;
}

LoadMetrics measure_load(std::span<const LoadRecord> records,
                         double duration_s,
                         const GoodputTargets& targets,
                         int64_t turns_per_session) {
  LoadMetrics out;
  out.duration_s = duration_s;
  std::vector<double> ttfts, tpots, itls, e2els, queues;
  int64_t good = 0;
  for (const LoadRecord& r : records) {
    if (!r.ok) {
      ++out.failed;
      ++out.errors[r.error_code];
      continue;
    }
    ++out.completed;
    out.input_tokens += r.prompt_tokens;
    out.output_tokens += r.output_tokens;
    ttfts.push_back(ms(r.ttft_ns));
    e2els.push_back(ms(r.latency_ns));
    queues.push_back(ms(r.queued_ns));
    if (r.output_tokens > 1) tpots.push_back(tpot_ms(r));
    for (const int64_t gap : r.itl_ns)
      itls.push_back(ms(gap));
    good += is_good(r, targets);
    add_counted(r.counted, out.counted);
  }
  if (duration_s > 0) {
    const auto rate = [&](int64_t n) { return static_cast<double>(n) / duration_s; };
    out.request_throughput = rate(out.completed);
    out.request_goodput = rate(good);
    out.output_throughput = rate(out.output_tokens);
    out.total_token_throughput = rate(out.input_tokens + out.output_tokens);
  }
  out.ttft_ms = spread_of(std::move(ttfts));
  out.tpot_ms = spread_of(std::move(tpots));
  out.itl_ms = spread_of(std::move(itls));
  out.e2el_ms = spread_of(std::move(e2els));
  out.queue_ms = spread_of(std::move(queues));
  measure_peaks(records, out);
  measure_turns(records, turns_per_session, out);
  return out;
}

}  // namespace fathom::serve
