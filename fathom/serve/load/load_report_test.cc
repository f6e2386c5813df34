#include "fathom/serve/load/load_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

namespace fathom::serve {
namespace {

using testing::HasSubstr;
using testing::Not;

LoadReport small_report() {
  LoadReport r;
  r.date = "20260131-120000";
  r.backend = "openai";
  r.model_id = "tiny";
  r.tokenizer_id = "/models/tiny";
  r.num_prompts = 2;
  r.request_rate = std::numeric_limits<double>::infinity();
  r.dataset = "random";
  LoadRecord good;
  good.ok = true;
  good.ttft_ns = 100'000'000;
  good.latency_ns = 130'000'000;
  good.itl_ns = {10'000'000, 20'000'000};
  good.prompt_tokens = 10;
  good.output_tokens = 3;
  good.counted.prompt = 10;
  good.counted.completion = 3;
  good.counted.cached = 4;
  good.text = "a \"b\"";
  LoadRecord bad;
  bad.error_code = "429 queue_full";
  bad.error = "full";
  bad.prompt_tokens = 10;
  r.records = {good, bad};
  r.metrics = measure_load(r.records, 2, {});
  return r;
}

Json parsed(const std::string& text) {
  auto json = parse_json(text, {}, "report");
  EXPECT_TRUE(json.ok()) << json.status().message();
  return std::move(json).value();
}

TEST(LoadReport, HasTheKeysOfVllm) {
  const Json json = parsed(load_report_json(small_report(), LoadDetail::kSums));

  std::vector<std::string> keys;
  for (const auto& [name, value] : json.members())
    keys.push_back(name);
  std::vector<std::string> expected{"date",
                                    "endpoint_type",
                                    "backend",
                                    "label",
                                    "model_id",
                                    "tokenizer_id",
                                    "num_prompts",
                                    "request_rate",
                                    "burstiness",
                                    "max_concurrency",
                                    "duration",
                                    "completed",
                                    "failed",
                                    "total_input_tokens",
                                    "total_output_tokens",
                                    "request_throughput",
                                    "request_goodput",
                                    "output_throughput",
                                    "total_token_throughput",
                                    "max_output_tokens_per_s",
                                    "max_concurrent_requests"};
  for (const std::string name : {"ttft", "tpot", "itl", "e2el"}) {
    for (const std::string what : {"mean", "median", "std", "p50", "p90", "p95", "p99"})
      expected.push_back(what + "_" + name + "_ms");
  }
  expected.push_back("fathom");
  EXPECT_EQ(keys, expected);
  EXPECT_EQ(json.find("request_rate")->as_string(), "inf");
  EXPECT_TRUE(json.find("request_goodput")->is_null());
  EXPECT_TRUE(json.find("max_concurrency")->is_null());
  EXPECT_EQ(json.find("mean_ttft_ms")->as_double(), 100);
  EXPECT_EQ(json.find("p99_itl_ms")->as_double(), 19.9);
  EXPECT_EQ(json.find("mean_tpot_ms")->as_double(), 15);
}

TEST(LoadReport, SaysWhatTheServerCounted) {
  const Json json = parsed(load_report_json(small_report(), LoadDetail::kSums));

  const Json* usage = json.find("fathom")->find("usage");
  EXPECT_EQ(usage->find("cached_tokens")->as_int(), 4);
  EXPECT_TRUE(usage->find("reasoning_tokens")->is_null());
  EXPECT_EQ(json.find("fathom")->find("errors_by_code")->find("429 queue_full")->as_int(), 1);
  EXPECT_EQ(json.find("fathom")->find("schema")->as_string(), "fathom.bench.serve/1");
}

TEST(LoadReport, DetailAddsAValueARequest) {
  const Json json = parsed(load_report_json(small_report(), LoadDetail::kRequests));

  EXPECT_EQ(json.find("ttfts")->items().size(), 2u);
  EXPECT_EQ(json.find("ttfts")->items()[0].as_double(), 0.1);
  EXPECT_EQ(json.find("itls")->items()[0].items()[1].as_double(), 0.02);
  EXPECT_EQ(json.find("generated_texts")->items()[0].as_string(), "a \"b\"");
  EXPECT_EQ(json.find("errors")->items()[0].as_string(), "");
  EXPECT_EQ(json.find("errors")->items()[1].as_string(), "full");
}

TEST(LoadReport, OptionalPartsComeWithTheirCause) {
  LoadReport r = small_report();
  r.max_concurrency = 4;
  r.has_goodput = true;
  r.request_rate = 2.5;
  r.drafts =
      DraftCounters{.drafts = 10, .draft_tokens = 20, .accepted_tokens = 5, .accepted_at = {5, 0}};

  const Json json = parsed(load_report_json(r, LoadDetail::kSums));

  EXPECT_EQ(json.find("request_rate")->as_double(), 2.5);
  EXPECT_EQ(json.find("request_goodput")->as_double(), 0.5);
  EXPECT_EQ(json.find("mean_client_queue_time_ms")->as_double(), 0);
  EXPECT_EQ(json.find("spec_decode_acceptance_rate")->as_double(), 25);
  EXPECT_EQ(json.find("spec_decode_acceptance_length")->as_double(), 1.5);
  EXPECT_EQ(json.find("spec_decode_per_position_acceptance_rates")->items()[0].as_double(), 0.5);
}

TEST(LoadReport, MarkdownHasTablesOfWhatThereIs) {
  LoadReport r = small_report();
  r.notes = {"simulated acceptance"};
  const std::string plain = load_report_markdown(r);
  r.records[0].session = r.records[0].turn = 0;
  r.metrics = measure_load(r.records, 2, {}, 1);
  const std::string agent = load_report_markdown(r);

  EXPECT_THAT(plain, HasSubstr("# Serving benchmark: tiny, random"));
  EXPECT_THAT(plain, HasSubstr("4 (40.0 %)"));
  EXPECT_THAT(plain, HasSubstr("429 queue_full"));
  EXPECT_THAT(plain, HasSubstr("simulated acceptance"));
  EXPECT_THAT(plain, Not(HasSubstr("| Turn")));
  EXPECT_THAT(agent, HasSubstr("| Turn"));
  EXPECT_THAT(agent, HasSubstr("1 whole sessions"));
}

TEST(LoadReport, MarkdownHasNoTimesWhereNothingEnded) {
  LoadReport r = small_report();
  r.records.erase(r.records.begin());
  r.metrics = measure_load(r.records, 2, {});

  const std::string text = load_report_markdown(r);

  EXPECT_THAT(text, testing::ContainsRegex("Time to first token *\\| *- *\\| *- *\\|"));
  EXPECT_THAT(text, Not(HasSubstr("0.00 |")));
}

TEST(LoadReport, CsvHasALineARequest) {
  EXPECT_EQ(load_report_csv(small_report()),
            "request,ok,error_code,session,turn,start_s,queue_ms,ttft_ms,e2el_ms,prompt_tokens,"
            "output_tokens,cached_tokens,reasoning_tokens,drafted_tokens,accepted_draft_tokens\n"
            "0,1,,,,0,0,100,130,10,3,4,,,\n"
            "1,0,429 queue_full,,,0,0,,,10,0,,,,\n");
}

}  // namespace
}  // namespace fathom::serve
