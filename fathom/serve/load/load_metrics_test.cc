#include "fathom/serve/load/load_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

using Kind = AnswerPiece::Kind;

constexpr int64_t kMs = 1'000'000;

TEST(TokenTimes, CountsFromTheFirstTokensToTheLastChoice) {
  TokenTimes t(1000 * kMs);

  t.note(Kind::kOpening, 1005 * kMs);
  t.note(Kind::kNothing, 1006 * kMs);
  t.note(Kind::kTokens, 1100 * kMs);
  t.note(Kind::kTokens, 1110 * kMs);
  t.note(Kind::kTokens, 1140 * kMs);
  t.note(Kind::kClosing, 1141 * kMs);
  t.note(Kind::kNothing, 1200 * kMs);

  EXPECT_EQ(t.first_ns(), 100 * kMs);
  EXPECT_EQ(t.gaps_ns(), (std::vector<int64_t>{10 * kMs, 30 * kMs}));
  EXPECT_EQ(t.last_ns(), 141 * kMs);
}

TEST(TokenTimes, AnAnswerWithoutTokensHasTheTimeOfItsEnd) {
  TokenTimes t(1000 * kMs);
  EXPECT_FALSE(t.any());

  t.note(Kind::kClosing, 1007 * kMs);

  EXPECT_TRUE(t.any());
  EXPECT_EQ(t.first_ns(), 7 * kMs);
  EXPECT_TRUE(t.gaps_ns().empty());
}

TEST(FillRecord, TakesTheCountsOfTheServerBeforeItsOwn) {
  TokenTimes t(1 * kMs);
  t.note(Kind::kTokens, 2 * kMs);
  t.note(Kind::kTokens, 3 * kMs);
  ReceivedAnswer answer;
  LoadRecord own, counted;

  fill_record(t, answer, 77, own);
  answer.counted.prompt = 80;
  answer.counted.completion = 6;
  fill_record(t, answer, 77, counted);

  EXPECT_EQ(own.prompt_tokens, 77);
  EXPECT_EQ(own.output_tokens, 2);
  EXPECT_EQ(counted.prompt_tokens, 80);
  EXPECT_EQ(counted.output_tokens, 6);
}

TEST(Spread, InterpolatesBetweenNeighbours) {
  const Spread s = spread_of({4, 1, 3, 2});

  EXPECT_DOUBLE_EQ(s.mean, 2.5);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(s.p50, 2.5);
  EXPECT_DOUBLE_EQ(s.std, std::sqrt(1.25));
  EXPECT_DOUBLE_EQ(s.p90, 3.7);
  EXPECT_DOUBLE_EQ(s.p95, 3.85);
  EXPECT_DOUBLE_EQ(s.p99, 3.97);
  EXPECT_DOUBLE_EQ(spread_of({7}).p99, 7);
  EXPECT_DOUBLE_EQ(spread_of({}).mean, 0);
}

LoadRecord request(int64_t start_ms, int64_t ttft_ms, std::vector<int64_t> itl_ms) {
  LoadRecord r;
  r.ok = true;
  r.start_ns = start_ms * kMs;
  r.ttft_ns = ttft_ms * kMs;
  r.latency_ns = r.ttft_ns;
  r.prompt_tokens = 10;
  r.output_tokens = 1 + static_cast<int64_t>(itl_ms.size());
  for (const int64_t gap : itl_ms) {
    r.itl_ns.push_back(gap * kMs);
    r.latency_ns += gap * kMs;
  }
  return r;
}

TEST(LoadMetrics, OfAHandMadeTimeline) {
  LoadRecord failed;
  failed.error_code = "429 queue_full";
  failed.start_ns = 1 * kMs;
  std::vector<LoadRecord> records = {
      request(0, 100, {10, 20}),  // ends at 130
      request(50, 200, {30}),     // ends at 280
      request(280, 300, {}),      // begins where the second ends; one token
      request(1500, 10, {5}),     // in the second second
      failed,
  };
  records[1].output_tokens = 4;  // one event of three tokens
  records[1].queued_ns = 8 * kMs;

  const LoadMetrics m = measure_load(records, 2.0, {});

  EXPECT_EQ(m.completed, 4);
  EXPECT_EQ(m.failed, 1);
  EXPECT_EQ(m.errors, (std::map<std::string, int64_t>{{"429 queue_full", 1}}));
  EXPECT_EQ(m.input_tokens, 40);
  EXPECT_EQ(m.output_tokens, 3 + 4 + 1 + 2);
  EXPECT_DOUBLE_EQ(m.request_throughput, 2);
  EXPECT_DOUBLE_EQ(m.output_throughput, 5);
  EXPECT_DOUBLE_EQ(m.total_token_throughput, 25);
  EXPECT_DOUBLE_EQ(m.ttft_ms.mean, (100 + 200 + 300 + 10) / 4.0);
  EXPECT_DOUBLE_EQ(m.ttft_ms.median, 150);
  EXPECT_DOUBLE_EQ(m.tpot_ms.mean, (15 + 10 + 5) / 3.0);  // the answer of one token has none
  EXPECT_DOUBLE_EQ(m.itl_ms.mean, (10 + 20 + 30 + 5) / 4.0);
  EXPECT_DOUBLE_EQ(m.e2el_ms.mean, (130 + 230 + 300 + 15) / 4.0);
  EXPECT_DOUBLE_EQ(m.queue_ms.mean, 2);
  EXPECT_EQ(m.max_concurrent_requests, 2);
  EXPECT_DOUBLE_EQ(m.max_output_tokens_per_s, 6);
}

TEST(LoadMetrics, GoodRequestsMeetAllTargets) {
  const std::vector<LoadRecord> records = {request(0, 100, {10, 20}), request(0, 200, {10}),
                                           request(0, 50, {40}), request(0, 90, {})};

  const auto goodput = [&](const GoodputTargets& targets) {
    return measure_load(records, 1.0, targets).request_goodput;
  };

  EXPECT_DOUBLE_EQ(goodput({.ttft_ms = 100, .tpot_ms = {}, .e2el_ms = {}}), 3);
  EXPECT_DOUBLE_EQ(goodput({.ttft_ms = 100, .tpot_ms = 15, .e2el_ms = {}}), 2);
  EXPECT_DOUBLE_EQ(goodput({.ttft_ms = {}, .tpot_ms = {}, .e2el_ms = 90}), 2);
  EXPECT_DOUBLE_EQ(goodput({.ttft_ms = 1, .tpot_ms = {}, .e2el_ms = {}}), 0);
}

TEST(LoadMetrics, OfNothingAreZero) {
  const LoadMetrics m = measure_load({}, 0, {});

  EXPECT_EQ(m.completed, 0);
  EXPECT_EQ(m.request_throughput, 0);
  EXPECT_EQ(m.max_concurrent_requests, 0);
  EXPECT_TRUE(m.turns.empty());
}

TEST(LoadMetrics, TurnsHaveTheirOwnTimesAndShares) {
  std::vector<LoadRecord> records;
  for (int64_t session = 0; session < 2; ++session) {
    for (int64_t turn = 0; turn < 2; ++turn) {
      LoadRecord r = request(1000 * turn, 100 - 50 * turn + 10 * session, {10});
      r.session = session;
      r.turn = turn;
      r.counted.prompt = 100;
      r.counted.cached = turn == 0 ? 0 : 90 - 20 * session;
      records.push_back(r);
    }
  }
  records.back().ok = false;  // the second turn of the second session

  const LoadMetrics m = measure_load(records, 2.0, {}, 2);

  ASSERT_EQ(m.turns.size(), 2u);
  EXPECT_EQ(m.turns[0].completed, 2);
  EXPECT_DOUBLE_EQ(m.turns[0].ttft_ms.mean, 105);
  EXPECT_DOUBLE_EQ(*m.turns[0].cached_share, 0);
  EXPECT_EQ(m.turns[1].completed, 1);
  EXPECT_DOUBLE_EQ(m.turns[1].ttft_ms.mean, 50);
  EXPECT_DOUBLE_EQ(*m.turns[1].cached_share, 0.9);
  EXPECT_EQ(m.sessions, 1);
  EXPECT_DOUBLE_EQ(m.session_s.mean, 1.06);
  EXPECT_EQ(m.counted.prompt, 300);
  EXPECT_EQ(m.counted.cached, 90);
  EXPECT_EQ(m.counted.with_reasoning, 0);
}

TEST(Goodput, ReadsTargetsAndRefusesOthers) {
  const auto targets = parse_goodput({"ttft:500", "tpot:30.5"});
  ASSERT_TRUE(targets.ok());
  EXPECT_EQ(targets->ttft_ms, 500);
  EXPECT_EQ(targets->tpot_ms, 30.5);
  EXPECT_FALSE(targets->e2el_ms);

  for (const char* word :
       {"", "ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:nan", "itl:3", "ttft:5ms"})
    EXPECT_THAT(parse_goodput({word}).status().message(),
                testing::HasSubstr(str_cat("--goodput is '", word, "'")));
}

}  // namespace
}  // namespace fathom::serve
