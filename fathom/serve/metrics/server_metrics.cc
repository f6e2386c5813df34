#include "fathom/serve/metrics/server_metrics.h"

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sstream>
#include <utility>

#include "fathom/serve/metrics/catalogue.h"

namespace fathom::serve {
namespace {

using Labels = std::map<std::string, std::string>;
using prometheus::Counter;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

const std::vector<double> kRequestSeconds = {.001, .005, .01, .02, .04, .06, .08, .1,
                                             .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                             20,   40,   80,  160, 640, 2560};
const std::vector<double> kTokenSeconds = {.001, .0025, .005, .01, .025, .05, .075, .1,
                                           .15,  .2,    .3,   .4,  .5,   .75, 1,    2.5};
const std::vector<double> kChoices = {1, 2, 5, 10, 20, 50, 100};

// Steps of a small model take less than a token of a large one may.
std::vector<double> step_buckets() {
  std::vector<double> buckets = {.0001, .00025, .0005};
  buckets.insert(buckets.end(), kTokenSeconds.begin(), kTokenSeconds.end());
  return buckets;
}

// 1, 2, 5, 10, ... and the limit itself.
std::vector<double> size_buckets(int64_t limit) {
  std::vector<double> buckets;
  constexpr int64_t kMost = 1'000'000'000;
  for (int64_t decade = 1; decade < std::min(limit, kMost); decade *= 10) {
    for (const int64_t step : {1, 2, 5}) {
      if (decade * step < limit) buckets.push_back(static_cast<double>(decade * step));
    }
  }
  buckets.push_back(static_cast<double>(std::max<int64_t>(limit, 1)));
  return buckets;
}

constexpr std::array<std::string_view, 4> kReasons = {"stop", "length", "abort", "error"};

// As vLLM names them; which error it was is told by request_errors_total.
size_t reason_index(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return 0;
    case FinishReason::kLength:
      return 1;
    case FinishReason::kAborted:
      return 2;
    case FinishReason::kNone:
    case FinishReason::kQueueTimeout:
    case FinishReason::kRequestTimeout:
    case FinishReason::kNumericalError:
    case FinishReason::kConstraintFault:
    case FinishReason::kEngineFault:
      break;
  }
  return 3;
}

constexpr std::pair<std::string_view, int AnswerRepairs::*> kRepairs[] = {
    {"missing_section", &AnswerRepairs::missing_section},
    {"other_form", &AnswerRepairs::other_form},
    {"stray_marker", &AnswerRepairs::stray_marker},
    {"broken_call", &AnswerRepairs::broken_call},
    {"unterminated", &AnswerRepairs::unterminated},
    {"unclosed_reasoning", &AnswerRepairs::unclosed_reasoning},
    {"missing_marker", &AnswerRepairs::missing_marker},
    {"missing_end", &AnswerRepairs::missing_end},
    {"missing_type", &AnswerRepairs::missing_type},
    {"not_json", &AnswerRepairs::not_json},
    {"unwrapped", &AnswerRepairs::unwrapped},
    {"duplicate_parameter", &AnswerRepairs::duplicate_parameter},
};
static_assert(sizeof(AnswerRepairs) == std::size(kRepairs) * sizeof(int),
              "every kind of repair has its label");

// Rows of each kind of fact; more are summed up in one.
constexpr size_t kMostRows = 32;

bool is_metric_prefix(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  if (text.empty() || text.size() > 64 || !letter(text[0])) return false;
  return std::ranges::all_of(text, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

MetricType type_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return MetricType::Counter;
    case MetricKind::kGauge:
      return MetricType::Gauge;
    case MetricKind::kHistogram:
      break;
  }
  return MetricType::Histogram;
}

// Counters that a program keeps in doubles must not be NaN or fall.
double counted(int64_t value) {
  return static_cast<double>(std::max<int64_t>(value, 0));
}

}  // namespace

struct ServerMetrics::State {
  State(std::string metric_prefix, MetricsFacts f);

  const MetricInfo& info(std::string_view name) const {
    const MetricInfo* found = find_metric(name);
    FATHOM_CHECK(found != nullptr, str_cat("no metric ", name, " in the catalogue"));
    return *found;
  }

  std::string full_name(std::string_view name) const { return str_cat(prefix, ":", name); }

  Histogram& histogram(std::string_view name,
                       const std::vector<double>& buckets,
                       const Labels& labels = {});
  Counter& counter(std::string_view name, const Labels& labels);

  // One more series of a family that is written from figures.
  void put(std::vector<MetricFamily>& out,
           std::string_view name,
           double value,
           const Labels& labels = {}) const;
  void put_facts(std::vector<MetricFamily>& out) const;
  void put_engine(std::vector<MetricFamily>& out, const MetricsFigures& now) const;
  void put_figures(std::vector<MetricFamily>& out, const MetricsFigures& now) const;

  const std::string prefix;
  const MetricsFacts facts;
  const Labels constant;
  prometheus::Registry registry;
  std::map<std::string, size_t, std::less<>> order;  // of full names in the catalogue

  Histogram* first_token = nullptr;
  Histogram* inter_token = nullptr;
  Histogram* per_token = nullptr;
  Histogram* whole = nullptr;
  Histogram* queue = nullptr;
  Histogram* prefill = nullptr;
  Histogram* decode = nullptr;
  Histogram* inference = nullptr;
  Histogram* prompt_tokens = nullptr;
  Histogram* generation_tokens = nullptr;
  Histogram* max_tokens = nullptr;
  Histogram* choices = nullptr;
  Histogram* iteration_tokens = nullptr;
  Histogram* prefill_step = nullptr;
  Histogram* decode_step = nullptr;
  std::array<Counter*, kReasons.size()> ends{};
  std::vector<Counter*> errors;
  std::array<Counter*, std::size(kRepairs)> repairs{};
};

ServerMetrics::State::State(std::string metric_prefix, MetricsFacts f)
    : prefix(std::move(metric_prefix)),
      facts(std::move(f)),
      constant{{"model_name", facts.model_name}, {"engine", facts.engine}} {
  const auto catalogue = metric_catalogue();
  for (size_t i = 0; i < catalogue.size(); ++i)
    order.emplace(full_name(catalogue[i].name), i);

  const std::vector<double> sizes = size_buckets(facts.max_model_len);
  first_token = &histogram("time_to_first_token_seconds", kRequestSeconds);
  inter_token = &histogram("inter_token_latency_seconds", kTokenSeconds);
  per_token = &histogram("request_time_per_output_token_seconds", kTokenSeconds);
  whole = &histogram("e2e_request_latency_seconds", kRequestSeconds);
  queue = &histogram("request_queue_time_seconds", kRequestSeconds);
  prefill = &histogram("request_prefill_time_seconds", kRequestSeconds);
  decode = &histogram("request_decode_time_seconds", kRequestSeconds);
  inference = &histogram("request_inference_time_seconds", kRequestSeconds);
  prompt_tokens = &histogram("request_prompt_tokens", sizes);
  generation_tokens = &histogram("request_generation_tokens", sizes);
  max_tokens = &histogram("request_params_max_tokens", sizes);
  choices = &histogram("request_params_n", kChoices);
  iteration_tokens = &histogram("iteration_tokens_total", sizes);
  const std::vector<double> steps = step_buckets();
  prefill_step = &histogram("step_seconds", steps, {{"phase", "prefill"}});
  decode_step = &histogram("step_seconds", steps, {{"phase", "decode"}});
  for (size_t i = 0; i < ends.size(); ++i)
    ends[i] = &counter("request_success_total", {{"finished_reason", std::string(kReasons[i])}});
  for (const std::string_view code : error_codes())
    errors.push_back(&counter("request_errors_total", {{"code", std::string(code)}}));
  for (size_t i = 0; i < repairs.size(); ++i) {
    repairs[i] =
        &counter("tool_parse_recoveries_total", {{"kind", std::string(kRepairs[i].first)}});
  }
}

Histogram& ServerMetrics::State::histogram(std::string_view name,
                                           const std::vector<double>& buckets,
                                           const Labels& labels) {
  return prometheus::BuildHistogram()
      .Name(full_name(name))
      .Help(std::string(info(name).help))
      .Labels(constant)
      .Register(registry)
      .Add(labels, buckets);
}

Counter& ServerMetrics::State::counter(std::string_view name, const Labels& labels) {
  return prometheus::BuildCounter()
      .Name(full_name(name))
      .Help(std::string(info(name).help))
      .Labels(constant)
      .Register(registry)
      .Add(labels);
}

void ServerMetrics::State::put(std::vector<MetricFamily>& out,
                               std::string_view name,
                               double value,
                               const Labels& labels) const {
  const MetricInfo& metric = info(name);
  const std::string full = full_name(name);
  if (out.empty() || out.back().name != full) {
    out.push_back({full, std::string(metric.help), type_of(metric.kind), {}});
  }
  prometheus::ClientMetric series;
  for (const Labels* set : {&constant, &labels}) {
    for (const auto& [label, text] : *set)
      series.label.push_back({label, text});
  }
  series.counter.value = value;
  series.gauge.value = value;
  out.back().metric.push_back(std::move(series));
}

void ServerMetrics::State::put_facts(std::vector<MetricFamily>& out) const {
  put(out, "build_info", 1,
      {{"version", facts.version}, {"commit", facts.commit}, {"arch", facts.arch}});
  put(out, "cache_config_info", 1,
      {{"block_size", str_cat(facts.block_size)},
       {"num_gpu_blocks", str_cat(facts.num_gpu_blocks)},
       {"num_cpu_blocks", str_cat(facts.num_cpu_blocks)},
       {"cache_dtype", facts.cache_dtype}});

  // Equal labels would be one series twice: what is for the same is added up.
  std::map<std::pair<std::string, std::string>, double> memory;
  for (const MetricsFacts::Memory& m : facts.memory) {
    const bool full = memory.size() >= kMostRows && !memory.contains({m.device, m.kind});
    memory[full ? std::pair<std::string, std::string>("others", "others")
                : std::pair(m.device, m.kind)] += counted(m.bytes);
  }
  for (const auto& [key, bytes] : memory)
    put(out, "device_memory_bytes", bytes, {{"device", key.first}, {"kind", key.second}});

  std::map<std::string, double> phases;
  for (const MetricsFacts::Phase& phase : facts.startup) {
    const bool full = phases.size() >= kMostRows && !phases.contains(phase.name);
    phases[full ? "others" : phase.name] += phase.seconds;
  }
  for (const auto& [name, seconds] : phases)
    put(out, "startup_seconds", seconds, {{"phase", name}});

  std::vector<Labels> rows;
  size_t left_out = 0;
  for (const MetricsFacts::Fallback& f : facts.fallbacks) {
    Labels row = {{"op", f.op}, {"wanted", f.wanted}, {"used", f.used}, {"reason", f.reason}};
    if (std::ranges::find(rows, row) != rows.end()) continue;
    rows.size() < kMostRows ? rows.push_back(std::move(row)) : static_cast<void>(++left_out);
  }
  if (left_out > 0) {
    rows.push_back({{"op", "others"},
                    {"wanted", ""},
                    {"used", ""},
                    {"reason", str_cat(left_out, " more; see /server_info")}});
  }
  for (const Labels& row : rows)
    put(out, "kernel_fallback_info", 1, row);
}

void ServerMetrics::State::put_engine(std::vector<MetricFamily>& out,
                                      const MetricsFigures& now) const {
  const CoreStats& core = now.service.core;
  put(out, "num_requests_running", counted(core.scheduler.num_running));
  put(out, "num_requests_waiting", counted(core.scheduler.num_waiting));
  put(out, "kv_cache_usage_perc",
      core.num_pages > 0
          ? static_cast<double>(core.owned_pages) / static_cast<double>(core.num_pages)
          : 0.0);
  put(out, "prompt_tokens_total", counted(core.prompt_tokens));
  put(out, "generation_tokens_total", counted(core.generated_tokens));
  put(out, "prefix_cache_queries_total", counted(core.prefix.queried_tokens));
  put(out, "prefix_cache_hits_total", counted(core.prefix.hit_tokens));
  put(out, "num_preemptions_total", counted(core.scheduler.num_preemptions));
  put(out, "spec_decode_num_drafts_total", counted(core.num_drafts));
  put(out, "spec_decode_num_draft_tokens_total", counted(core.drafted_tokens));
  put(out, "spec_decode_num_accepted_tokens_total", counted(core.accepted_tokens));
  for (int64_t i = 0; i < std::max<int64_t>(core.most_drafts, 1); ++i) {
    put(out, "spec_decode_num_accepted_tokens_per_pos_total",
        counted(core.accepted_at[static_cast<size_t>(i)]), {{"position", str_cat(i)}});
  }
  put(out, "draft_pauses_total", counted(core.draft_pauses));
  put(out, "draft_batch_limit", counted(core.draft_batch_limit));
  put(out, "numerical_errors_total", counted(core.numerical_errors));
  // Drafts that were wrong were computed too; those that were right are generated tokens.
  const double computed = counted(core.prompt_tokens) + counted(core.generated_tokens) +
                          counted(core.drafted_tokens - core.accepted_tokens);
  put(out, "model_flops_total", facts.flops_per_token * computed);
  put(out, "model_bytes_total",
      facts.bytes_per_step * counted(core.num_steps) + facts.bytes_per_token * computed);
}

void ServerMetrics::State::put_figures(std::vector<MetricFamily>& out,
                                       const MetricsFigures& now) const {
  const ServiceStats& service = now.service;
  put_engine(out, now);
  put(out, "engine_healthy", now.healthy && !service.faulted ? 1.0 : 0.0);
  put(out, "engine_draining", service.draining ? 1.0 : 0.0);
  put(out, "engine_last_step_age_seconds",
      service.last_step_ns > 0 ? seconds_between(service.last_step_ns, now.now_ns) : 0.0);
  put(out, "http_connections", counted(now.connections));
  put(out, "grammar_compilations_total", counted(now.grammar.compiled));
  put(out, "grammar_cache_hits_total", counted(now.grammar.hits));
  put(out, "grammar_refusals_total", counted(now.grammar.refused));
  put(out, "grammar_cache_bytes", counted(now.grammar.cached_bytes));
  put(out, "kv_events_published_total", counted(now.kv_batches_published));
  put(out, "kv_events_dropped_total", counted(now.kv_batches_dropped));
}

ServerMetrics::ServerMetrics(std::string prefix) : prefix_(std::move(prefix)) {}

ServerMetrics::~ServerMetrics() = default;

Result<std::unique_ptr<ServerMetrics>> ServerMetrics::create(std::string prefix) {
  if (!is_metric_prefix(prefix)) {
    return invalid_argument(str_cat("--metrics-prefix is '", prefix,
                                    "', expected letters, digits and _, no digit first, at most "
                                    "64 of them"));
  }
  return std::unique_ptr<ServerMetrics>(new ServerMetrics(std::move(prefix)));
}

Status ServerMetrics::open(MetricsFacts facts) {
  FATHOM_CHECK(state_ == nullptr, "metrics are opened once");
  try {
    state_ = std::make_unique<State>(prefix_, std::move(facts));
  } catch (const std::exception& e) {
    return internal_error(str_cat("the metrics library refused a metric: ", e.what()));
  }
  opened_.store(state_.get(), std::memory_order_release);
  return {};
}

void ServerMetrics::on_step(const StepRecord& step) {
  State* const s = state();
  if (s == nullptr) return;
  s->iteration_tokens->Observe(counted(step.prompt_tokens) + counted(step.generated_tokens));
  (step.prompt_tokens > 0 ? s->prefill_step : s->decode_step)->Observe(step.seconds);
}

void ServerMetrics::on_token(double seconds_since_last) {
  State* const s = state();
  if (s == nullptr) return;
  s->inter_token->Observe(seconds_since_last);
}

void ServerMetrics::on_first_token(double seconds_since_submit) {
  State* const s = state();
  if (s == nullptr) return;
  s->first_token->Observe(seconds_since_submit);
}

void ServerMetrics::on_end(const RequestRecord& r) {
  State* const s = state();
  if (s == nullptr) return;
  const RequestTimes& t = r.times;
  s->ends[reason_index(r.finish)]->Increment();
  s->whole->Observe(seconds_between(t.submitted_ns, r.ended_ns));
  s->prompt_tokens->Observe(counted(r.prompt_tokens));
  s->generation_tokens->Observe(counted(r.generated_tokens));
  s->max_tokens->Observe(counted(r.max_tokens));
  // A request that never ran has waited until its end, and has no other times.
  s->queue->Observe(seconds_between(t.submitted_ns, t.started_ns > 0 ? t.started_ns : r.ended_ns));
  if (t.started_ns == 0 || t.first_token_ns == 0) return;
  const double decode_s = seconds_between(t.first_token_ns, t.last_token_ns);
  s->prefill->Observe(seconds_between(t.started_ns, t.first_token_ns));
  s->decode->Observe(decode_s);
  s->inference->Observe(seconds_between(t.started_ns, t.last_token_ns));
  if (r.generated_tokens > 1) {
    s->per_token->Observe(decode_s / static_cast<double>(r.generated_tokens - 1));
  }
}

void ServerMetrics::on_answer(int64_t num_choices) {
  State* const s = state();
  if (s == nullptr) return;
  s->choices->Observe(counted(num_choices));
}

void ServerMetrics::on_error(std::string_view code) {
  State* const s = state();
  if (s == nullptr) return;
  const auto codes = error_codes();
  const auto found = std::ranges::find(codes, code);
  const auto index =
      found == codes.end() ? codes.size() - 1 : static_cast<size_t>(found - codes.begin());
  s->errors[index]->Increment();
}

void ServerMetrics::on_repairs(const AnswerRepairs& repairs) {
  State* const s = state();
  if (s == nullptr) return;
  for (size_t i = 0; i < std::size(kRepairs); ++i) {
    if (const int count = repairs.*kRepairs[i].second; count > 0) {
      s->repairs[i]->Increment(count);
    }
  }
}

std::string ServerMetrics::text(const MetricsFigures& now) const {
  const State* const s = state();
  if (s == nullptr) return {};
  std::vector<MetricFamily> families = s->registry.Collect();
  s->put_facts(families);
  s->put_figures(families, now);
  std::ranges::sort(families, {}, [&](const MetricFamily& f) { return s->order.at(f.name); });
  for (MetricFamily& family : families)
    std::ranges::sort(family.metric, {}, &prometheus::ClientMetric::label);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return std::move(out).str();
}

}  // namespace fathom::serve
