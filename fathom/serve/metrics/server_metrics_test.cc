#include "fathom/serve/metrics/server_metrics.h"

#include <chrono>
#include <gtest/gtest.h>
#include <thread>

#include "fathom/serve/metrics/catalogue.h"
#include "tests/support/prometheus_text.h"

namespace fathom::serve {
namespace {

using Labels = std::map<std::string, std::string>;

constexpr int64_t kMs = 1'000'000;

MetricsFacts facts() {
  return {.model_name = "tiny",
          .version = "0.1.0",
          .commit = "abc",
          .arch = "x86-64",
          .block_size = 64,
          .num_gpu_blocks = 0,
          .num_cpu_blocks = 200,
          .cache_dtype = "bf16",
          .max_model_len = 4096,
          .memory = {{"cpu", "weights", 1000}, {"cpu", "kv_cache", 500}, {"cpu", "weights", 24}},
          .fallbacks = {{"q_b_proj", "nvfp4_gemm", "bf16_gemm", "no \"FP4\"\nunit"}},
          .startup = {{"read", 0.25}, {"warm-up", 1.5}},
          .flops_per_token = 100,
          .bytes_per_step = 1000,
          .bytes_per_token = 10};
}

std::unique_ptr<ServerMetrics> metrics(MetricsFacts f = facts(),
                                       const std::string& prefix = "fathom") {
  auto made = ServerMetrics::create(prefix);
  EXPECT_TRUE(made.ok()) << made.status().message();
  const Status opened = (*made)->open(std::move(f));
  EXPECT_TRUE(opened.ok()) << opened.message();
  return std::move(made).value();
}

// A page that was parsed, and its values by name and labels.
class Page {
 public:
  explicit Page(const ServerMetrics& m,
                const MetricsFigures& now = {},
                std::string prefix = "fathom")
      : prefix_(std::move(prefix)) {
    auto read = PrometheusReader::read(m.text(now));
    EXPECT_TRUE(read.ok()) << read.status().message();
    if (read.ok()) families = std::move(read).value();
  }

  const PrometheusFamily* family(std::string_view name) const {
    for (const PrometheusFamily& f : families) {
      if (f.name == str_cat(prefix_, ":", name)) return &f;
    }
    return nullptr;
  }

  // The value of the series with these labels besides model_name and engine; -1: there is none.
  double value(std::string_view name, Labels labels = {}) const {
    labels.insert({{"model_name", "tiny"}, {"engine", "0"}});
    for (const PrometheusFamily& f : families) {
      for (const PrometheusSample& s : f.samples) {
        if (s.name == str_cat(prefix_, ":", name) && s.labels == labels) return s.value;
      }
    }
    return -1;
  }

  int64_t num_series() const {
    int64_t count = 0;
    for (const PrometheusFamily& f : families)
      count += static_cast<int64_t>(f.samples.size());
    return count;
  }

  std::vector<PrometheusFamily> families;

 private:
  std::string prefix_;
};

RequestRecord answered() {
  return {.prompt_tokens = 30,
          .cached_tokens = 16,
          .generated_tokens = 5,
          .max_tokens = 64,
          .finish = FinishReason::kStop,
          .times = {.submitted_ns = 1000 * kMs,
                    .started_ns = 1003 * kMs,
                    .first_token_ns = 1050 * kMs,
                    .last_token_ns = 1250 * kMs},
          .ended_ns = 1300 * kMs};
}

TEST(ServerMetrics, WritesEachFamilyOfTheCatalogueOnceAndInItsOrder) {
  const Page page(*metrics());

  const auto catalogue = metric_catalogue();
  ASSERT_EQ(page.families.size(), catalogue.size());
  for (size_t i = 0; i < catalogue.size(); ++i) {
    EXPECT_EQ(page.families[i].name, str_cat("fathom:", catalogue[i].name));
    EXPECT_EQ(page.families[i].type, metric_kind_name(catalogue[i].kind));
    EXPECT_EQ(page.families[i].help, catalogue[i].help);
    EXPECT_FALSE(page.families[i].samples.empty()) << catalogue[i].name;
  }
}

TEST(ServerMetrics, GivesEachSeriesTheLabelsOfTheCatalogueAndNoOthers) {
  const Page page(*metrics());

  for (size_t i = 0; i < page.families.size(); ++i) {
    std::set<std::string> expected = {"model_name", "engine"};
    std::string label;
    for (const char c : std::string(metric_catalogue()[i].labels) + ",") {
      if (c != ',') {
        label += c;
      } else if (!label.empty()) {
        expected.insert(std::exchange(label, {}));
      }
    }
    for (const PrometheusSample& s : page.families[i].samples) {
      std::set<std::string> found;
      for (const auto& [name, value] : s.labels)
        found.insert(name);
      if (s.name.ends_with("_bucket")) found.erase("le");
      EXPECT_EQ(found, expected) << s.name;
      EXPECT_EQ(s.labels.at("model_name"), "tiny");
      EXPECT_EQ(s.labels.at("engine"), "0");
    }
  }
}

// The table of the contract, by hand: what dashboards and routers are written against.
TEST(ServerMetrics, HasTheNamesOfTheContract) {
  const std::pair<std::string_view, std::string_view> contract[] = {
      {"num_requests_running", "gauge"},
      {"num_requests_waiting", "gauge"},
      {"kv_cache_usage_perc", "gauge"},
      {"cache_config_info", "gauge"},
      {"prompt_tokens_total", "counter"},
      {"generation_tokens_total", "counter"},
      {"prefix_cache_queries_total", "counter"},
      {"prefix_cache_hits_total", "counter"},
      {"num_preemptions_total", "counter"},
      {"request_success_total", "counter"},
      {"request_errors_total", "counter"},
      {"spec_decode_num_drafts_total", "counter"},
      {"spec_decode_num_draft_tokens_total", "counter"},
      {"spec_decode_num_accepted_tokens_total", "counter"},
      {"spec_decode_num_accepted_tokens_per_pos_total", "counter"},
      {"time_to_first_token_seconds", "histogram"},
      {"inter_token_latency_seconds", "histogram"},
      {"request_time_per_output_token_seconds", "histogram"},
      {"e2e_request_latency_seconds", "histogram"},
      {"request_queue_time_seconds", "histogram"},
      {"request_prefill_time_seconds", "histogram"},
      {"request_decode_time_seconds", "histogram"},
      {"request_inference_time_seconds", "histogram"},
      {"request_prompt_tokens", "histogram"},
      {"request_generation_tokens", "histogram"},
      {"request_params_max_tokens", "histogram"},
      {"request_params_n", "histogram"},
      {"iteration_tokens_total", "histogram"},
      {"build_info", "gauge"},
      {"device_memory_bytes", "gauge"},
      {"kernel_fallback_info", "gauge"},
      {"model_flops_total", "counter"},
      {"model_bytes_total", "counter"},
      {"step_seconds", "histogram"},
      {"tool_parse_recoveries_total", "counter"},
      {"engine_healthy", "gauge"},
      {"startup_seconds", "gauge"},
  };

  const Page page(*metrics());

  for (const auto& [name, type] : contract) {
    const PrometheusFamily* family = page.family(name);
    ASSERT_NE(family, nullptr) << name;
    EXPECT_EQ(family->type, type) << name;
  }
}

TEST(ServerMetrics, AnswersRoutersOfVllmUnderItsPrefix) {
  const auto m = metrics(facts(), "vllm");
  MetricsFigures now;
  now.service.core.scheduler.num_waiting = 3;
  now.service.core.scheduler.num_running = 3;
  now.service.core.num_pages = 200;
  now.service.core.owned_pages = 50;

  const Page page(*m, now, "vllm");

  EXPECT_EQ(page.value("num_requests_waiting"), 3);
  EXPECT_EQ(page.family("num_requests_waiting")->type, "gauge");
  EXPECT_EQ(page.value("num_requests_running"), 3);
  EXPECT_EQ(page.family("num_requests_running")->type, "gauge");
  EXPECT_EQ(page.value("kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(page.family("kv_cache_usage_perc")->type, "gauge");
  EXPECT_EQ(page.value("cache_config_info", {{"block_size", "64"},
                                             {"num_gpu_blocks", "0"},
                                             {"num_cpu_blocks", "200"},
                                             {"cache_dtype", "bf16"}}),
            1);
  EXPECT_EQ(page.family("cache_config_info")->type, "gauge");
  EXPECT_EQ(page.value("time_to_first_token_seconds_count"), 0);
  EXPECT_EQ(page.family("time_to_first_token_seconds")->type, "histogram");
}

TEST(ServerMetrics, RefusesAPrefixThatIsNoName) {
  for (const std::string prefix : {"", "9a", "a:b", "a b", "ä", "a\n"}) {
    const auto made = ServerMetrics::create(prefix);
    ASSERT_FALSE(made.ok()) << prefix;
    EXPECT_NE(made.status().message().find("--metrics-prefix"), std::string::npos);
  }
}

TEST(ServerMetrics, AreEmptyUntilTheModelIsLoaded) {
  const auto made = ServerMetrics::create("fathom");
  ASSERT_TRUE(made.ok());
  ServerMetrics& m = **made;
  m.on_token(1);
  m.on_first_token(1);
  m.on_step({});
  m.on_end({});
  m.on_answer(1);
  m.on_error("loading");
  m.on_repairs({});
  EXPECT_EQ(m.text({}), "");

  ASSERT_TRUE(m.open(facts()).ok());
  m.on_error("loading");

  EXPECT_EQ(Page(m).value("request_errors_total", {{"code", "loading"}}), 1);
}

TEST(ServerMetrics, ReadsTheCountersOfTheEngine) {
  MetricsFigures now;
  CoreStats& core = now.service.core;
  core.num_steps = 7;
  core.prompt_tokens = 100;
  core.generated_tokens = 40;
  core.drafted_tokens = 30;
  core.accepted_tokens = 20;
  core.most_drafts = 3;
  core.num_drafts = 11;
  core.accepted_at = {9, 7, 4};
  core.draft_pauses = 2;
  core.draft_batch_limit = 6;
  core.numerical_errors = 1;
  core.prefix = {.queried_tokens = 90, .hit_tokens = 64, .collisions = 0};
  core.scheduler.num_preemptions = 5;
  now.grammar = {.compiled = 2, .hits = 3, .refused = 4, .cached_bytes = 555};
  now.connections = 8;
  now.kv_batches_published = 11;
  now.kv_batches_dropped = 12;

  const Page page(*metrics(), now);

  EXPECT_EQ(page.value("prompt_tokens_total"), 100);
  EXPECT_EQ(page.value("generation_tokens_total"), 40);
  EXPECT_EQ(page.value("spec_decode_num_draft_tokens_total"), 30);
  EXPECT_EQ(page.value("spec_decode_num_accepted_tokens_total"), 20);
  EXPECT_EQ(page.value("spec_decode_num_drafts_total"), 11);
  for (const auto& [position, count] : {std::pair{"0", 9}, {"1", 7}, {"2", 4}}) {
    EXPECT_EQ(page.value("spec_decode_num_accepted_tokens_per_pos_total", {{"position", position}}),
              count);
  }
  EXPECT_EQ(page.value("draft_pauses_total"), 2);
  EXPECT_EQ(page.value("draft_batch_limit"), 6);
  EXPECT_EQ(page.value("numerical_errors_total"), 1);
  EXPECT_EQ(page.value("prefix_cache_queries_total"), 90);
  EXPECT_EQ(page.value("prefix_cache_hits_total"), 64);
  EXPECT_EQ(page.value("num_preemptions_total"), 5);
  EXPECT_EQ(page.value("model_flops_total"), 100 * (100 + 40 + 10));
  EXPECT_EQ(page.value("model_bytes_total"), 1000 * 7 + 10 * (100 + 40 + 10));
  EXPECT_EQ(page.value("grammar_compilations_total"), 2);
  EXPECT_EQ(page.value("grammar_cache_hits_total"), 3);
  EXPECT_EQ(page.value("grammar_refusals_total"), 4);
  EXPECT_EQ(page.value("grammar_cache_bytes"), 555);
  EXPECT_EQ(page.value("http_connections"), 8);
  EXPECT_EQ(page.value("kv_events_published_total"), 11);
  EXPECT_EQ(page.value("kv_events_dropped_total"), 12);
}

TEST(ServerMetrics, SplitsTheTimeOfARequest) {
  const auto m = metrics();

  m->on_end(answered());

  const Page page(*m);
  EXPECT_EQ(page.value("request_success_total", {{"finished_reason", "stop"}}), 1);
  EXPECT_NEAR(page.value("e2e_request_latency_seconds_sum"), 0.3, 1e-9);
  EXPECT_NEAR(page.value("request_queue_time_seconds_sum"), 0.003, 1e-9);
  EXPECT_NEAR(page.value("request_prefill_time_seconds_sum"), 0.047, 1e-9);
  EXPECT_NEAR(page.value("request_decode_time_seconds_sum"), 0.2, 1e-9);
  EXPECT_NEAR(page.value("request_inference_time_seconds_sum"), 0.247, 1e-9);
  EXPECT_NEAR(page.value("request_time_per_output_token_seconds_sum"), 0.05, 1e-9);
  EXPECT_EQ(page.value("request_prompt_tokens_sum"), 30);
  EXPECT_EQ(page.value("request_generation_tokens_sum"), 5);
  EXPECT_EQ(page.value("request_params_max_tokens_sum"), 64);
}

TEST(ServerMetrics, CountsAWaitThatCameToNothingAndNoTimesBeyond) {
  const auto m = metrics();
  RequestRecord r = answered();
  r.finish = FinishReason::kQueueTimeout;
  r.generated_tokens = 0;
  r.times.started_ns = r.times.first_token_ns = r.times.last_token_ns = 0;

  m->on_end(r);

  const Page page(*m);
  EXPECT_EQ(page.value("request_success_total", {{"finished_reason", "error"}}), 1);
  EXPECT_NEAR(page.value("request_queue_time_seconds_sum"), 0.3, 1e-9);
  EXPECT_EQ(page.value("request_prefill_time_seconds_count"), 0);
  EXPECT_EQ(page.value("request_decode_time_seconds_count"), 0);
  EXPECT_EQ(page.value("request_time_per_output_token_seconds_count"), 0);
}

TEST(ServerMetrics, NamesReasonsAsVllmDoes) {
  const auto m = metrics();
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kLength, FinishReason::kAborted,
        FinishReason::kNumericalError, FinishReason::kConstraintFault, FinishReason::kEngineFault,
        FinishReason::kRequestTimeout}) {
    RequestRecord r = answered();
    r.finish = reason;
    m->on_end(r);
  }

  const Page page(*m);
  EXPECT_EQ(page.value("request_success_total", {{"finished_reason", "stop"}}), 1);
  EXPECT_EQ(page.value("request_success_total", {{"finished_reason", "length"}}), 2);
  EXPECT_EQ(page.value("request_success_total", {{"finished_reason", "abort"}}), 1);
  EXPECT_EQ(page.value("request_success_total", {{"finished_reason", "error"}}), 4);
}

TEST(ServerMetrics, PutsTimesIntoTheBucketsOfTheContract) {
  const auto m = metrics();
  m->on_first_token(0.02);
  m->on_first_token(0.0201);
  m->on_token(0.01);
  m->on_token(9);

  const Page page(*m);

  EXPECT_EQ(page.value("time_to_first_token_seconds_bucket", {{"le", "0.01"}}), 0);
  EXPECT_EQ(page.value("time_to_first_token_seconds_bucket", {{"le", "0.02"}}), 1);
  EXPECT_EQ(page.value("time_to_first_token_seconds_bucket", {{"le", "0.04"}}), 2);
  EXPECT_EQ(page.value("time_to_first_token_seconds_bucket", {{"le", "2560"}}), 2);
  EXPECT_EQ(page.family("time_to_first_token_seconds")->samples.size(), 22u + 3u);
  EXPECT_EQ(page.value("inter_token_latency_seconds_bucket", {{"le", "0.01"}}), 1);
  EXPECT_EQ(page.value("inter_token_latency_seconds_bucket", {{"le", "2.5"}}), 1);
  EXPECT_EQ(page.value("inter_token_latency_seconds_bucket", {{"le", "+Inf"}}), 2);
  EXPECT_EQ(page.family("inter_token_latency_seconds")->samples.size(), 16u + 3u);
}

TEST(ServerMetrics, CutsSizesAtOneTwoFiveUpToTheContext) {
  const Page page(*metrics());

  std::vector<double> boundaries;
  for (const PrometheusSample& s : page.family("request_prompt_tokens")->samples) {
    if (!s.name.ends_with("_bucket") || s.labels.at("le") == "+Inf") continue;
    double value = 0;
    const std::string& le = s.labels.at("le");
    std::from_chars(le.data(), le.data() + le.size(), value);
    boundaries.push_back(value);
  }

  EXPECT_EQ(boundaries,
            (std::vector<double>{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 4096}));
}

TEST(ServerMetrics, TellsStepsWithPromptsFromThoseWithout) {
  const auto m = metrics();
  m->on_step({.prompt_tokens = 60, .generated_tokens = 2, .running = 3, .seconds = 0.5});
  m->on_step({.prompt_tokens = 0, .generated_tokens = 3, .running = 3, .seconds = 0.125});
  m->on_step({.prompt_tokens = 0, .generated_tokens = 3, .running = 3, .seconds = 0.125});

  const Page page(*m);

  EXPECT_EQ(page.value("step_seconds_sum", {{"phase", "prefill"}}), 0.5);
  EXPECT_EQ(page.value("step_seconds_count", {{"phase", "decode"}}), 2);
  EXPECT_EQ(page.value("step_seconds_sum", {{"phase", "decode"}}), 0.25);
  EXPECT_EQ(page.value("iteration_tokens_total_sum"), 68);
  EXPECT_EQ(page.value("iteration_tokens_total_count"), 3);
}

TEST(ServerMetrics, CountsErrorsByCodeAndNoTextOfClients) {
  const auto m = metrics();
  m->on_error("queue_full");
  m->on_error("queue_full");
  m->on_error("no such code\"}");

  const Page page(*m);

  EXPECT_EQ(page.value("request_errors_total", {{"code", "queue_full"}}), 2);
  EXPECT_EQ(page.value("request_errors_total", {{"code", "other"}}), 1);
  EXPECT_EQ(page.family("request_errors_total")->samples.size(), error_codes().size());
}

TEST(ServerMetrics, CountsEachKindOfRepair) {
  const auto m = metrics();
  m->on_repairs({.missing_section = 1, .not_json = 3});
  m->on_repairs({.missing_section = 1, .duplicate_parameter = 2});
  m->on_repairs({});

  const Page page(*m);

  EXPECT_EQ(page.value("tool_parse_recoveries_total", {{"kind", "missing_section"}}), 2);
  EXPECT_EQ(page.value("tool_parse_recoveries_total", {{"kind", "not_json"}}), 3);
  EXPECT_EQ(page.value("tool_parse_recoveries_total", {{"kind", "duplicate_parameter"}}), 2);
  EXPECT_EQ(page.value("tool_parse_recoveries_total", {{"kind", "unterminated"}}), 0);
  EXPECT_EQ(page.family("tool_parse_recoveries_total")->samples.size(), 12u);
}

TEST(ServerMetrics, CountsChoices) {
  const auto m = metrics();
  m->on_answer(1);
  m->on_answer(4);

  const Page page(*m);

  EXPECT_EQ(page.value("request_params_n_sum"), 5);
  EXPECT_EQ(page.value("request_params_n_bucket", {{"le", "1"}}), 1);
}

TEST(ServerMetrics, TellsWhetherTheEngineGoesForward) {
  const auto m = metrics();
  MetricsFigures now{.now_ns = 5'000 * kMs};
  now.service.last_step_ns = 3'500 * kMs;
  now.service.draining = true;
  EXPECT_EQ(Page(*m, now).value("engine_healthy"), 1);
  EXPECT_EQ(Page(*m, now).value("engine_draining"), 1);
  EXPECT_EQ(Page(*m, now).value("engine_last_step_age_seconds"), 1.5);

  now.healthy = false;
  EXPECT_EQ(Page(*m, now).value("engine_healthy"), 0);

  now.healthy = true;
  now.service.faulted = true;
  EXPECT_EQ(Page(*m, now).value("engine_healthy"), 0);
}

TEST(ServerMetrics, WritesFactsOnceAndEscaped) {
  const Page page(*metrics());

  EXPECT_EQ(page.value("build_info", {{"version", "0.1.0"}, {"commit", "abc"}, {"arch", "x86-64"}}),
            1);
  EXPECT_EQ(page.value("device_memory_bytes", {{"device", "cpu"}, {"kind", "weights"}}), 1024);
  EXPECT_EQ(page.value("device_memory_bytes", {{"device", "cpu"}, {"kind", "kv_cache"}}), 500);
  EXPECT_EQ(page.value("startup_seconds", {{"phase", "warm-up"}}), 1.5);
  EXPECT_EQ(page.value("kernel_fallback_info", {{"op", "q_b_proj"},
                                                {"wanted", "nvfp4_gemm"},
                                                {"used", "bf16_gemm"},
                                                {"reason", "no \"FP4\"\nunit"}}),
            1);
}

TEST(ServerMetrics, StaysBelowItsNumberOfSeries) {
  MetricsFacts f = facts();
  f.max_model_len = 1'048'576;
  f.memory.clear();
  f.startup.clear();
  f.fallbacks.clear();
  for (int i = 0; i < 500; ++i) {
    f.memory.push_back({"cuda:" + std::to_string(i), "weights", 1});
    f.startup.push_back({"phase" + std::to_string(i), 1.0});
    f.fallbacks.push_back({"op" + std::to_string(i), "a", "b", "c"});
  }

  const Page page(*metrics(f));

  EXPECT_LT(page.num_series(), ServerMetrics::kMostSeries);
  EXPECT_EQ(page.value("device_memory_bytes", {{"device", "others"}, {"kind", "others"}}), 468);
  EXPECT_EQ(page.value("startup_seconds", {{"phase", "others"}}), 468);
  EXPECT_EQ(page.value("kernel_fallback_info", {{"op", "others"},
                                                {"wanted", ""},
                                                {"used", ""},
                                                {"reason", "468 more; see /server_info"}}),
            1);
}

TEST(ServerMetrics, CountsFromManyThreadsWhileItIsScraped) {
  const auto m = metrics();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        m->on_token(0.01);
        m->on_error("queue_full");
      }
    });
  }
  for (int i = 0; i < 5; ++i)
    Page{*m};
  for (std::thread& t : threads)
    t.join();

  const Page page(*m);
  EXPECT_EQ(page.value("inter_token_latency_seconds_count"), 6000);
  EXPECT_EQ(page.value("request_errors_total", {{"code", "queue_full"}}), 6000);
}

// A bound of 1 us with room for a loaded machine: the best of some rounds counts.
TEST(ServerMetrics, CostsTheEngineThreadLessThanAMicrosecond) {
#ifdef FATHOM_SANITIZED
  GTEST_SKIP() << "times of a sanitized build say nothing";
#endif
  const auto m = metrics();
  constexpr int kCalls = 20'000;
  const auto best_ns = [&](const auto& call) {
    double best = 1e9;
    for (int round = 0; round < 10; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i)
        call(i);
      const std::chrono::duration<double, std::nano> took =
          std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count() / kCalls);
    }
    return best;
  };

  const double token_ns = best_ns([&](int i) { m->on_token(1e-3 * (i % 3000)); });
  const double step_ns = best_ns([&](int i) {
    m->on_step({.prompt_tokens = i % 512, .generated_tokens = 8, .running = 8, .seconds = 0.3});
  });

  RecordProperty("on_token_ns", static_cast<int>(token_ns));
  RecordProperty("on_step_ns", static_cast<int>(step_ns));
  EXPECT_LT(token_ns, 1000);
  EXPECT_LT(step_ns, 1000);
}

// The reader must see what is wrong, or the tests above prove nothing.
TEST(PrometheusReader, RefusesWhatTheFormatForbids) {
  const std::string head = "# HELP a_total x\n# TYPE a_total counter\n";
  EXPECT_TRUE(PrometheusReader::read(head + "a_total{b=\"c\"} 1\n").ok());
  const std::string wrong[] = {
      head + "a_total 1",
      head + "a_total 1\na_total 1\n",
      head + head + "a_total 1\n",
      head + "b 1\n",
      head + "a_total x\n",
      head + "a_total{b=c} 1\n",
      head + "a_total{b=\"c\",b=\"d\"} 1\n",
      head + "a_total{b=\"\\x\"} 1\n",
      "a_total 1\n",
      "# HELP a x\n# TYPE a counter\na 1\n",
      "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\n"
      "h_count 1\n",
      "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n",
      "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
      "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_count 1\n",
  };
  for (const std::string& text : wrong)
    EXPECT_FALSE(PrometheusReader::read(text).ok()) << text;
}

}  // namespace
}  // namespace fathom::serve
