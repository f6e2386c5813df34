#include "fathom/runtime/sample/stop.h"

#include <gtest/gtest.h>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer t = [] {
    auto loaded = Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/micro-v3");
    FATHOM_CHECK(loaded.ok(), loaded.ok() ? "" : loaded.status().message());
    return std::move(loaded).value();
  }();
  return t;
}

constexpr int32_t kEnd = 1;
constexpr int32_t kEndIds[] = {kEnd};

struct Answer {
  std::string text;
  std::vector<std::string> pieces;
  FinishReason finish = FinishReason::kNone;
  std::string stop_text;
  size_t num_tokens = 0;
};

Answer run(const SamplingParams& params,
           const std::vector<int32_t>& ids,
           int64_t max_tokens = 1000,
           const Tokenizer* t = &tokenizer()) {
  StopChecker checker(params, max_tokens, kEndIds, t, SpecialTokens::kSkip);
  Answer a;
  for (int32_t id : ids) {
    const StopOutcome out = checker.push(id);
    ++a.num_tokens;
    a.pieces.emplace_back(out.text);
    a.text += out.text;
    a.finish = out.finish;
    a.stop_text = out.stop_text;
    if (out.finish != FinishReason::kNone) return a;
  }
  return a;
}

// One token for each byte, so that every border is a token border.
std::vector<int32_t> bytes_as_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (char c : text) {
    int32_t found = -1;
    for (int32_t id = 3; id < tokenizer().vocab_size() && found < 0; ++id) {
      if (tokenizer().token_bytes(id) == std::string_view(&c, 1)) found = id;
    }
    EXPECT_GE(found, 0) << "byte " << static_cast<int>(c);
    ids.push_back(found);
  }
  return ids;
}

TEST(StopChecker, EndsAtTheEndTokenWithoutItsText) {
  std::vector<int32_t> ids = tokenizer().encode("Hello there");
  const size_t length = ids.size();
  ids.push_back(kEnd);
  ids.push_back(5);

  const Answer a = run({}, ids);

  EXPECT_EQ(a.finish, FinishReason::kStop);
  EXPECT_EQ(a.text, "Hello there");
  EXPECT_EQ(a.num_tokens, length + 1);
}

TEST(StopChecker, IgnoresTheEndTokenWhenAsked) {
  SamplingParams p;
  p.ignore_eos = true;

  EXPECT_EQ(run(p, {5, kEnd, 6}).finish, FinishReason::kNone);
  EXPECT_EQ(run(p, {5, kEnd, 6}, 3).finish, FinishReason::kLength);
}

TEST(StopChecker, EndsAtStopIdsOfTheRequest) {
  SamplingParams p;
  p.ignore_eos = true;
  p.stop_token_ids = {9, 7};

  const Answer a = run(p, {5, kEnd, 7, 9});

  EXPECT_EQ(a.finish, FinishReason::kStop);
  EXPECT_EQ(a.num_tokens, 3u);
}

TEST(StopChecker, CountsTokensAgainstTheBudget) {
  for (int64_t budget : {1, 2, 3}) {
    const Answer a = run({}, {5, 6, 7, 8}, budget);

    EXPECT_EQ(a.finish, FinishReason::kLength);
    EXPECT_EQ(a.num_tokens, static_cast<size_t>(budget));
  }
}

TEST(StopChecker, EndTokenAtTheBudgetIsAStop) {
  EXPECT_EQ(run({}, {5, kEnd}, 2).finish, FinishReason::kStop);
}

TEST(StopChecker, BansEndTokensBelowTheMinimum) {
  SamplingParams p;
  p.min_tokens = 2;
  p.stop_token_ids = {9};
  StopChecker checker(p, 10, kEndIds, &tokenizer(), SpecialTokens::kSkip);

  EXPECT_EQ(checker.banned().size(), 2u);
  (void)checker.push(5);
  EXPECT_EQ(checker.banned().size(), 2u);
  (void)checker.push(5);
  EXPECT_TRUE(checker.banned().empty());
}

TEST(StopChecker, FindsStopStringsAcrossTokenBorders) {
  SamplingParams p;
  p.stop = {"cde"};

  const Answer a = run(p, bytes_as_ids("abcdefg"));

  EXPECT_EQ(a.finish, FinishReason::kStop);
  EXPECT_EQ(a.text, "ab");
  EXPECT_EQ(a.stop_text, "cde");
  EXPECT_EQ(a.num_tokens, 5u);
}

TEST(StopChecker, HoldsBackOnlyWhatMayBecomeAStopString) {
  SamplingParams p;
  p.stop = {"cdx"};

  const Answer a = run(p, bytes_as_ids("abcdefcd"), 8);

  EXPECT_EQ(a.pieces, (std::vector<std::string>{"a", "b", "", "", "cde", "f", "", "cd"}));
  EXPECT_EQ(a.finish, FinishReason::kLength);
}

TEST(StopChecker, FallsBackToShorterBorders) {
  SamplingParams p;
  p.stop = {"aab"};

  const Answer a = run(p, bytes_as_ids("aaaab"));

  EXPECT_EQ(a.finish, FinishReason::kStop);
  EXPECT_EQ(a.text, "aa");
}

TEST(StopChecker, TheStringThatEndsFirstWins) {
  SamplingParams p;
  p.stop = {"bcde", "cd", "d"};

  const Answer a = run(p, bytes_as_ids("abcdef"));

  EXPECT_EQ(a.stop_text, "cd");
  EXPECT_EQ(a.text, "ab");
}

TEST(StopChecker, NeverSplitsACharacter) {
  SamplingParams p;
  p.stop = {"\xc3\xa9t"};  // "ét"

  const Answer a = run(p, bytes_as_ids("h\xc3\xa9\xc3\xa9tx"));

  EXPECT_EQ(a.text, "h\xc3\xa9");
  EXPECT_EQ(a.finish, FinishReason::kStop);
  EXPECT_EQ(run({}, bytes_as_ids("h\xc3"), 2).text, "h\xef\xbf\xbd");
}

TEST(StopChecker, StopStringsCountFromTheMinimumOn) {
  SamplingParams p;
  p.stop = {"a"};
  p.min_tokens = 3;

  const Answer a = run(p, bytes_as_ids("aabac"));

  EXPECT_EQ(a.num_tokens, 4u);
  EXPECT_EQ(a.text, "aab");
}

TEST(StopChecker, WorksWithoutATokenizer) {
  const Answer a = run({}, {5, 6, kEnd}, 10, nullptr);

  EXPECT_EQ(a.finish, FinishReason::kStop);
  EXPECT_EQ(a.text, "");
}

// The naive definition: the first position at which a stop string ends.
TEST(StopChecker, AgreesWithTheDefinitionOnRandomText) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    Rng rng(seed);
    const auto random_text = [&](uint32_t low, uint32_t high) {
      std::string text;
      for (uint32_t n = low + rng.next_below(high - low + 1); n > 0; --n) {
        text += static_cast<char>('a' + rng.next_below(2));
      }
      return text;
    };
    SamplingParams p;
    for (uint32_t n = 1 + rng.next_below(3); n > 0; --n)
      p.stop.push_back(random_text(3, 9));
    const std::string text = random_text(1, 80);
    size_t end = std::string::npos;
    size_t begin = 0;
    for (const std::string& stop : p.stop) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      const bool first = end == std::string::npos || at + stop.size() < end;
      if (first || (at + stop.size() == end && at < begin)) {
        end = at + stop.size();
        begin = at;
      }
    }

    const Answer a = run(p, bytes_as_ids(text), static_cast<int64_t>(text.size()));

    EXPECT_EQ(a.text, end == std::string::npos ? text : text.substr(0, begin));
    EXPECT_EQ(a.finish, end == std::string::npos ? FinishReason::kLength : FinishReason::kStop);
  }
}

}  // namespace
}  // namespace fathom
