#include "fathom/serve/load/datasets.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "fathom/serve/load/prompts.h"

namespace fathom::serve {
namespace {

using testing::HasSubstr;

TEST(JsonlRequests, HoldTextIdsOrMessages) {
  const auto requests = read_jsonl_requests(
      "{\"prompt\":\"hi\",\"output_len\":7}\n\n{\"prompt\":[3,4],\"max_tokens\":9}\r\n"
      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[1]}",
      "f.jsonl");

  ASSERT_TRUE(requests.ok()) << requests.status().message();
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_EQ((*requests)[0].text, "hi");
  EXPECT_EQ((*requests)[0].output_len, 7);
  EXPECT_EQ((*requests)[1].ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ((*requests)[1].output_len, 9);
  EXPECT_EQ((*requests)[2].messages.size(), 1u);
  EXPECT_TRUE((*requests)[2].tools.is_array());
  EXPECT_EQ((*requests)[2].output_len, 0);
}

TEST(JsonlRequests, ErrorsNameTheLine) {
  const auto message = [](std::string_view line) {
    return read_jsonl_requests(str_cat("{\"prompt\":\"a\"}\n", line), "f.jsonl").status().message();
  };

  EXPECT_THAT(message("{"), HasSubstr("f.jsonl: line 2"));
  EXPECT_THAT(message("[]"), HasSubstr("f.jsonl: line 2 is an array, expected an object"));
  EXPECT_THAT(message("{}"), HasSubstr("f.jsonl: line 2: has neither prompt nor messages"));
  EXPECT_THAT(message("{\"prompt\":\"\"}"), HasSubstr("prompt is empty"));
  EXPECT_THAT(message("{\"prompt\":[-1]}"), HasSubstr("no id of a token"));
  EXPECT_THAT(message("{\"prompt\":\"a\",\"output_len\":0}"), HasSubstr("output_len"));
  EXPECT_THAT(message("{\"messages\":[]}"), HasSubstr("messages"));
  EXPECT_THAT(read_jsonl_requests("\n", "f").status().message(), HasSubstr("f has no request"));
}

TEST(ShareGptRequests, TakeTheFirstTwoTurns) {
  const auto requests = read_sharegpt_requests(
      R"([{"id":"a","conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"ans"}]},)"
      R"({"conversations":[{"from":"human","value":"alone"}]},{"conversations":[{},{}]}])",
      "s.json");

  ASSERT_TRUE(requests.ok()) << requests.status().message();
  ASSERT_EQ(requests->size(), 1u);
  EXPECT_EQ((*requests)[0].text, "q");
  EXPECT_EQ((*requests)[0].expected, "ans");
  EXPECT_THAT(read_sharegpt_requests("[]", "s.json").status().message(),
              HasSubstr("s.json has no conversation of two turns"));
  EXPECT_THAT(read_sharegpt_requests("{}", "s.json").status().message(), HasSubstr("an object"));
}

TEST(TraceRequests, AreSortedAndBeginAtZero) {
  const auto requests = read_trace_requests(
      "{\"timestamp\":2000,\"input_length\":600,\"output_length\":5,\"hash_ids\":[1,2]}\n"
      "{\"timestamp\":1500.5,\"input_length\":1300,\"output_length\":6,\"hash_ids\":[1,7]}\n"
      "{\"timestamp\":3000,\"input_length\":10,\"output_length\":1}",
      "t.jsonl");

  ASSERT_TRUE(requests.ok()) << requests.status().message();
  EXPECT_EQ((*requests)[0].at_ns, 0);
  EXPECT_EQ((*requests)[1].at_ns, 499'500'000);
  const auto sizes = [](const std::vector<TraceBlock>& blocks) {
    std::vector<int64_t> out;
    for (const TraceBlock& b : blocks)
      out.push_back(b.tokens);
    return out;
  };
  const auto first = trace_blocks((*requests)[0], 0);
  const auto second = trace_blocks((*requests)[1], 1);
  EXPECT_EQ(sizes(first), (std::vector<int64_t>{512, 512, 276}));  // longer than its names
  EXPECT_EQ(sizes(second), (std::vector<int64_t>{512, 88}));
  EXPECT_EQ(first[0].stream, second[0].stream);
  EXPECT_NE(first[1].stream, second[1].stream);
  EXPECT_NE(trace_blocks((*requests)[2], 1)[0].stream, second[0].stream);
}

TEST(TraceRequests, RefuseLinesWithoutTimesOrLengths) {
  for (const char* line :
       {R"({"input_length":1,"output_length":1})",
        R"({"timestamp":-1,"input_length":1,"output_length":1})",
        R"({"timestamp":1,"output_length":1})",
        R"({"timestamp":1,"input_length":0,"output_length":1})",
        R"({"timestamp":1,"input_length":1,"output_length":1,"hash_ids":["x"]})"}) {
    const auto requests = read_trace_requests(line, "t");
    ASSERT_FALSE(requests.ok()) << line;
    EXPECT_THAT(requests.status().message(), HasSubstr("t: line 1: ")) << line;
  }
}

std::vector<FileRequest> numbered(int64_t count) {
  std::vector<FileRequest> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i)
    out[i].text = str_cat(i);
  return out;
}

TEST(ChooseRequests, IsAPermutationThenRepeatsIt) {
  const auto chosen = choose_requests(numbered(5), 10, 3);
  std::multiset<std::string> first, second;
  for (size_t i = 0; i < 5; ++i) {
    first.insert(chosen[i].text);
    EXPECT_EQ(chosen[i].text, chosen[i + 5].text);
  }
  EXPECT_EQ(first, (std::multiset<std::string>{"0", "1", "2", "3", "4"}));
  const auto again = choose_requests(numbered(5), 10, 3);
  EXPECT_TRUE(std::equal(chosen.begin(), chosen.end(), again.begin(),
                         [](const auto& a, const auto& b) { return a.text == b.text; }));
}

TEST(RandomPrompts, StayWithinTheirLengthsAndTheVocabulary) {
  const auto exact = random_shapes({.input = 100, .output = 10, .range_ratio = 0}, 50, 1);
  const auto spread = random_shapes({.input = 100, .output = 10, .range_ratio = 0.5}, 2000, 1);

  for (const PromptShape& s : exact)
    EXPECT_TRUE(s.input == 100 && s.output == 10);
  std::set<int64_t> inputs;
  for (const PromptShape& s : spread) {
    inputs.insert(s.input);
    EXPECT_TRUE(s.output >= 5 && s.output <= 15) << s.output;
  }
  EXPECT_EQ(*inputs.begin(), 50);
  EXPECT_EQ(*inputs.rbegin(), 150);

  Rng rng(5);
  std::set<int32_t> seen;
  for (const int32_t id : random_ids(rng, 10'000, 800))
    seen.insert(id);
  EXPECT_EQ(*seen.begin(), 100);
  EXPECT_EQ(*seen.rbegin(), 699);
  EXPECT_EQ(random_ids(rng, 3, 1), (std::vector<int32_t>{0, 0, 0}));
}

TEST(RandomPrompts, WordsAreSeededAndCounted) {
  Rng a(5), b(5), c(6);
  const std::string text = random_words(a, 40);

  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 39);
  EXPECT_EQ(text, random_words(b, 40));
  EXPECT_NE(text, random_words(c, 40));
}

}  // namespace
}  // namespace fathom::serve
