#include "fathom/serve/load/load_report.h"

#include <cmath>

#include "fathom/base/str_cat.h"
#include "fathom/text/figures.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

struct NamedSpread {
  std::string_view key;
  std::string_view title;
  const Spread* spread;
};

std::vector<NamedSpread> spreads_of(const LoadReport& report) {
  const LoadMetrics& m = report.metrics;
  std::vector<NamedSpread> out{{"ttft", "Time to first token", &m.ttft_ms},
                               {"tpot", "Time per output token, without the first", &m.tpot_ms},
                               {"itl", "Between tokens", &m.itl_ms},
                               {"e2el", "Whole request", &m.e2el_ms}};
  if (report.max_concurrency) {
    out.push_back({"client_queue_time", "Waiting for a place", &m.queue_ms});
  }
  return out;
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

void write_spread(JsonWriter& out, const NamedSpread& s) {
  const auto add = [&](std::string_view what, double value) {
    out.key(str_cat(what, "_", s.key, "_ms")).number(value);
  };
  add("mean", s.spread->mean);
  add("median", s.spread->median);
  add("std", s.spread->std);
  add("p50", s.spread->p50);
  add("p90", s.spread->p90);
  add("p95", s.spread->p95);
  add("p99", s.spread->p99);
}

template <class Write>
void write_list(JsonWriter& out,
                std::string_view key,
                const std::vector<LoadRecord>& records,
                const Write& write) {
  out.key(key).begin_array();
  for (const LoadRecord& r : records)
    write(r);
  out.end_array();
}

void write_requests(JsonWriter& out, const std::vector<LoadRecord>& records) {
  write_list(out, "input_lens", records,
             [&](const LoadRecord& r) { out.integer(r.prompt_tokens); });
  write_list(out, "output_lens", records,
             [&](const LoadRecord& r) { out.integer(r.output_tokens); });
  write_list(out, "ttfts", records, [&](const LoadRecord& r) { out.number(seconds(r.ttft_ns)); });
  write_list(out, "itls", records, [&](const LoadRecord& r) {
    out.begin_array();
    for (const int64_t gap : r.itl_ns)
      out.number(seconds(gap));
    out.end_array();
  });
  write_list(out, "latencies", records,
             [&](const LoadRecord& r) { out.number(seconds(r.latency_ns)); });
  write_list(out, "start_times", records,
             [&](const LoadRecord& r) { out.number(seconds(r.start_ns)); });
  write_list(out, "queue_times", records,
             [&](const LoadRecord& r) { out.number(seconds(r.queued_ns)); });
  write_list(out, "generated_texts", records, [&](const LoadRecord& r) { out.string(r.text); });
  write_list(out, "errors", records, [&](const LoadRecord& r) { out.string(r.error); });
}

// Names as vllm writes them; drafts that the server names in its usage alone give fewer of them.
void write_drafts(JsonWriter& out, const LoadReport& report) {
  const CountedSums& c = report.metrics.counted;
  const bool in_metrics = report.drafts && report.drafts->draft_tokens > 0;
  if (!in_metrics && c.drafted == 0) return;
  const double tokens = in_metrics ? report.drafts->draft_tokens : static_cast<double>(c.drafted);
  const double accepted =
      in_metrics ? report.drafts->accepted_tokens : static_cast<double>(c.accepted);
  out.key("spec_decode_acceptance_rate").number(100 * accepted / tokens);
  out.key("spec_decode_draft_tokens").integer(std::llround(tokens));
  out.key("spec_decode_accepted_tokens").integer(std::llround(accepted));
  if (!in_metrics || report.drafts->drafts <= 0) return;
  const DraftCounters& d = *report.drafts;
  out.key("spec_decode_acceptance_length").number(1 + accepted / d.drafts);
  out.key("spec_decode_num_drafts").integer(std::llround(d.drafts));
  out.key("spec_decode_per_position_acceptance_rates").begin_array();
  for (const double at : d.accepted_at)
    out.number(at / d.drafts);
  out.end_array();
}

void write_usage(JsonWriter& out, const CountedSums& c) {
  out.key("usage").begin_object();
  const auto add = [&](std::string_view name, int64_t sum, int64_t with) {
    out.key(name);
    if (with > 0) {
      out.integer(sum);
    } else {
      out.null();  // no request of the run names it
    }
  };
  add("prompt_tokens", c.prompt, c.with_prompt);
  add("completion_tokens", c.completion, c.with_prompt);
  add("cached_tokens", c.cached, c.with_cached);
  add("reasoning_tokens", c.reasoning, c.with_reasoning);
  add("drafted_tokens", c.drafted, c.with_drafted);
  add("accepted_draft_tokens", c.accepted, c.with_accepted);
  out.key("requests").integer(c.with_prompt);
  out.end_object();
}

void write_turns(JsonWriter& out, const LoadMetrics& m) {
  out.key("turns").begin_array();
  for (const TurnMetrics& t : m.turns) {
    out.begin_object();
    out.key("turn").integer(t.turn).key("completed").integer(t.completed);
    write_spread(out, {"ttft", "", &t.ttft_ms});
    out.key("mean_prompt_tokens").number(t.prompt_tokens);
    out.key("mean_output_tokens").number(t.output_tokens);
    out.key("cached_share");
    if (t.cached_share) {
      out.number(*t.cached_share);
    } else {
      out.null();
    }
    out.end_object();
  }
  out.end_array();
  out.key("sessions").begin_object();
  out.key("whole").integer(m.sessions);
  out.key("mean_s").number(m.session_s.mean).key("median_s").number(m.session_s.median);
  out.key("p90_s").number(m.session_s.p90).key("p99_s").number(m.session_s.p99);
  out.end_object();
}

void write_own(JsonWriter& out, const LoadReport& report) {
  const LoadMetrics& m = report.metrics;
  out.key("fathom").begin_object();
  out.key("schema").string("fathom.bench.serve/1");
  for (const auto& [name, value] : report.own)
    out.key(name).json(value);
  write_usage(out, m.counted);
  out.key("errors_by_code").begin_object();
  for (const auto& [code, count] : m.errors)
    out.key(code).integer(count);
  out.end_object();
  if (!m.turns.empty()) write_turns(out, m);
  out.key("notes").begin_array();
  for (const std::string& note : report.notes)
    out.string(note);
  out.end_array();
  out.end_object();
}

std::string rate_text(double rate) {
  return std::isinf(rate) ? std::string("inf") : format_fixed(rate, 2);
}

std::string share_text(double part, double whole) {
  return whole > 0 ? str_cat(format_fixed(100 * part / whole, 1), " %") : std::string("-");
}

void add_counts(const LoadReport& report, MarkdownTable& table) {
  const LoadMetrics& m = report.metrics;
  const CountedSums& c = m.counted;
  table.add({"Requests completed", format_count(m.completed)});
  table.add({"Requests failed", format_count(m.failed)});
  table.add({"Duration s", format_fixed(m.duration_s, 2)});
  table.add({"Request rate asked 1/s", rate_text(report.request_rate)});
  table.add({"Requests 1/s", format_fixed(m.request_throughput, 2)});
  if (report.has_goodput) table.add({"Good requests 1/s", format_fixed(m.request_goodput, 2)});
  table.add({"Input tokens", format_count(m.input_tokens)});
  table.add({"Output tokens", format_count(m.output_tokens)});
  table.add({"Output tokens/s", format_fixed(m.output_throughput, 1)});
  table.add({"All tokens/s", format_fixed(m.total_token_throughput, 1)});
  table.add(
      {"Events with tokens in the fullest second", format_fixed(m.max_output_tokens_per_s, 0)});
  table.add({"Requests at once, at most", format_count(m.max_concurrent_requests)});
  const auto part = [](int64_t tokens, int64_t of) {
    return str_cat(format_count(tokens), " (",
                   share_text(static_cast<double>(tokens), static_cast<double>(of)), ")");
  };
  if (c.with_cached > 0) {
    table.add({"Prompt tokens from the cache", part(c.cached, c.prompt_of_cached)});
  }
  if (c.with_reasoning > 0) table.add({"Reasoning tokens", part(c.reasoning, c.completion)});
  if (c.drafted > 0) table.add({"Drafts accepted", part(c.accepted, c.drafted)});
}

}  // namespace

std::string load_report_json(const LoadReport& report, LoadDetail detail) {
  const LoadMetrics& m = report.metrics;
  JsonWriter out(JsonStyle::kIndented);
  out.begin_object();
  out.key("date").string(report.date);
  out.key("endpoint_type").string(report.backend);
  out.key("backend").string(report.backend);
  out.key("label").string(report.backend);
  out.key("model_id").string(report.model_id);
  out.key("tokenizer_id").string(report.tokenizer_id);
  out.key("num_prompts").integer(report.num_prompts);
  out.key("request_rate");
  if (std::isinf(report.request_rate)) {
    out.string("inf");
  } else {
    out.number(report.request_rate);
  }
  out.key("burstiness").number(report.burstiness);
  out.key("max_concurrency");
  if (report.max_concurrency) {
    out.integer(*report.max_concurrency);
  } else {
    out.null();
  }
  out.key("duration").number(m.duration_s);
  out.key("completed").integer(m.completed);
  out.key("failed").integer(m.failed);
  out.key("total_input_tokens").integer(m.input_tokens);
  out.key("total_output_tokens").integer(m.output_tokens);
  out.key("request_throughput").number(m.request_throughput);
  out.key("request_goodput");
  if (report.has_goodput) {
    out.number(m.request_goodput);
  } else {
    out.null();
  }
  out.key("output_throughput").number(m.output_throughput);
  out.key("total_token_throughput").number(m.total_token_throughput);
  out.key("max_output_tokens_per_s").number(m.max_output_tokens_per_s);
  out.key("max_concurrent_requests").integer(m.max_concurrent_requests);
  for (const NamedSpread& s : spreads_of(report))
    write_spread(out, s);
  write_drafts(out, report);
  if (detail == LoadDetail::kRequests) write_requests(out, report.records);
  write_own(out, report);
  out.end_object();
  return out.take() + "\n";
}

std::string load_report_markdown(const LoadReport& report) {
  const LoadMetrics& m = report.metrics;
  std::string out = str_cat("# Serving benchmark: ", report.model_id, ", ", report.dataset, "\n\n");
  MarkdownTable counts({"Figure", "Value"});
  add_counts(report, counts);
  out += counts.str();
  MarkdownTable times({"Time ms", "mean", "median", "std", "p90", "p95", "p99"});
  for (const NamedSpread& s : spreads_of(report)) {
    const auto cell = [&s](double v) {
      return s.spread->count > 0 ? format_fixed(v, 2) : std::string("-");
    };
    times.add({std::string(s.title), cell(s.spread->mean), cell(s.spread->median),
               cell(s.spread->std), cell(s.spread->p90), cell(s.spread->p95), cell(s.spread->p99)});
  }
  str_append(out, str_cat("\n", times.str()));
  if (!m.turns.empty()) {
    MarkdownTable turns({"Turn", "Requests", "Prompt tokens", "From the cache", "Output tokens",
                         "TTFT ms median", "p90"});
    for (const TurnMetrics& t : m.turns) {
      turns.add({str_cat(t.turn + 1), format_count(t.completed), format_fixed(t.prompt_tokens, 0),
                 t.cached_share ? share_text(*t.cached_share, 1) : std::string("-"),
                 format_fixed(t.output_tokens, 0), format_fixed(t.ttft_ms.median, 2),
                 format_fixed(t.ttft_ms.p90, 2)});
    }
    str_append(out, str_cat("\n", turns.str(), "\n", m.sessions, " whole sessions, ",
                            format_fixed(m.session_s.median, 2), " s median, ",
                            format_fixed(m.session_s.p90, 2), " s p90\n"));
  }
  if (!m.errors.empty()) {
    MarkdownTable errors({"Error", "Requests"});
    for (const auto& [code, count] : m.errors)
      errors.add({code, format_count(count)});
    str_append(out, str_cat("\n", errors.str()));
  }
  for (const std::string& note : report.notes)
    str_append(out, str_cat("\n", note, "\n"));
  return out;
}

std::string load_report_csv(const LoadReport& report) {
  std::string out =
      "request,ok,error_code,session,turn,start_s,queue_ms,ttft_ms,e2el_ms,prompt_tokens,"
      "output_tokens,cached_tokens,reasoning_tokens,drafted_tokens,accepted_draft_tokens\n";
  int64_t number = 0;
  const auto optional = [](const std::optional<int64_t>& v) {
    return v ? str_cat(*v) : std::string{};
  };
  for (const LoadRecord& r : report.records) {
    const auto turn = [](int64_t v) { return v < 0 ? std::string{} : str_cat(v); };
    str_append(
        out, str_cat(number++, ",", r.ok ? 1 : 0, ",", r.error_code, ",", turn(r.session), ",",
                     turn(r.turn), ",", seconds(r.start_ns), ",", seconds(r.queued_ns) * 1e3, ","));
    if (r.ok) str_append(out, str_cat(seconds(r.ttft_ns) * 1e3, ",", seconds(r.latency_ns) * 1e3));
    if (!r.ok) out += ',';
    str_append(out, str_cat(",", r.prompt_tokens, ",", r.output_tokens, ",",
                            optional(r.counted.cached), ",", optional(r.counted.reasoning), ",",
                            optional(r.counted.drafted), ",", optional(r.counted.accepted), "\n"));
  }
  return out;
}

}  // namespace fathom::serve
