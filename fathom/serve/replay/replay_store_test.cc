#include "fathom/serve/replay/replay_store.h"

#include <atomic>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "fathom/serve/openai/small_routes.h"
#include "fathom/serve/replay/call_tokens.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

// The ids of a conversation with one call, as a format prints it.
std::vector<int32_t> printed(const TestServer& server, const ChatConversation& conversation) {
  const auto text = server.model.chat_format->format(conversation, server.model.chat_options);
  return text->encode(server.tokenizer);
}

ChatConversation with_calls(std::vector<ToolCall> calls) {
  ChatConversation conversation;
  conversation.messages.push_back({.role = ChatRole::kUser, .content = "hi"});
  conversation.messages.push_back(
      {.role = ChatRole::kAssistant, .content = "so", .tool_calls = std::move(calls)});
  return conversation;
}

AnswerGrammar grammar_of(const TestServer& server) {
  return server.model.chat_format->answer_grammar(server.model.chat_options);
}

// Calls as the format's own rendering has them, as if a model had written just that.
std::vector<int32_t> sampled_ids(const TestServer& server, const std::vector<ToolCall>& calls) {
  CallTokens tokens(server.tokenizer, grammar_of(server));
  for (const int32_t id : printed(server, with_calls(calls))) {
    if (id == server.tokenizer.eos_id()) break;
    tokens.push(id);
  }
  return tokens.take();
}

// The same ids with "value" in one piece a character: a tokenisation that encode never gives.
std::vector<int32_t> spelled(const TestServer& server, std::vector<int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string text(server.tokenizer.token_bytes(ids[i]));
    if (server.tokenizer.is_added(ids[i]) || text.size() < 3) continue;
    std::vector<int32_t> letters;
    for (const char c : text) {
      const auto one = server.tokenizer.encode(std::string(1, c));
      letters.insert(letters.end(), one.begin(), one.end());
    }
    if (server.tokenizer.decode(letters) != text) continue;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i));
    ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(i), letters.begin(), letters.end());
    return ids;
  }
  ADD_FAILURE() << "no token to spell";
  return ids;
}

const std::vector<const ChatFormat*>& formats_with_calls() {
  static const std::vector<const ChatFormat*> formats = {
      &chat_v25(), &chat_v3(), &chat_r1(), &chat_v31(), &chat_v32(), &chat_v4(), &chat_v4_0731()};
  return formats;
}

const std::vector<ToolCall> kCalls = {
    {.id = "call_1", .name = "weather", .arguments = R"({"place": "London town", "days": 3})"},
    {.id = "call_2", .name = "weather", .arguments = R"({"place": "Rome"})"}};

TEST(ReplayStore, HistoriesTakeTheIdsThatWereSampled) {
  for (const ChatFormat* format : formats_with_calls()) {
    TestServer server(*format);
    ReplayStore store(server.tokenizer, grammar_of(server));
    ChatConversation conversation = with_calls(kCalls);
    const std::vector<int32_t> canonical = printed(server, conversation);
    const std::vector<int32_t> ids = spelled(server, sampled_ids(server, kCalls));

    store.record(kCalls, ids);
    store.recall(conversation);

    EXPECT_EQ(store.stats().blocks, 1) << format->name();
    EXPECT_EQ(store.stats().recalled, 1) << format->name();
    const std::vector<int32_t> replayed = printed(server, conversation);
    EXPECT_NE(replayed, canonical) << format->name();
    EXPECT_EQ(server.tokenizer.decode(replayed), server.tokenizer.decode(canonical))
        << format->name();
    EXPECT_NE(std::ranges::search(replayed, ids).begin(), replayed.end()) << format->name();
    const auto text = format->format(conversation, server.model.chat_options);
    EXPECT_EQ(text->str(), server.tokenizer.decode(canonical)) << format->name();
  }
}

struct Replaying : testing::Test {
  // Whether a history with these calls takes the recorded ids.
  bool recalls(std::vector<ToolCall> calls) {
    ChatConversation conversation = with_calls(std::move(calls));
    store.recall(conversation);
    return !conversation.messages[1].sampled_calls.ids.empty();
  }

  TestServer server;
  ReplayStore store{server.tokenizer, grammar_of(server), 1'000};
};

TEST_F(Replaying, OnlyTheSameCallsAreReplayed) {
  store.record(kCalls, sampled_ids(server, kCalls));
  const auto changed = [](size_t i, auto change) {
    std::vector<ToolCall> calls = kCalls;
    change(calls[i]);
    return calls;
  };

  EXPECT_TRUE(recalls(kCalls));
  EXPECT_TRUE(recalls(changed(0, [](ToolCall& c) {
    c.arguments = R"({"place":"London town","days":3})";  // other blanks
  })));
  EXPECT_FALSE(recalls(changed(0, [](ToolCall& c) { c.arguments = R"({"place":"Paris"})"; })));
  EXPECT_FALSE(recalls(changed(0, [](ToolCall& c) { c.id = "call_9"; })));
  EXPECT_FALSE(recalls(changed(1, [](ToolCall& c) { c.id = "call_9"; })));
  EXPECT_FALSE(recalls(changed(1, [](ToolCall& c) { c.name = "f"; })));
  EXPECT_FALSE(recalls({kCalls[0]}));
  EXPECT_FALSE(recalls({kCalls[1], kCalls[0]}));
  EXPECT_FALSE(recalls({}));
}

TEST_F(Replaying, IdsThatSaySomethingElseAreNotReplayed) {
  std::vector<int32_t> more = sampled_ids(server, kCalls);
  for (const int32_t id : server.tokenizer.encode("and more"))
    more.push_back(id);
  std::vector<int32_t> cut = sampled_ids(server, kCalls);
  cut.resize(cut.size() / 2);
  const std::pair<std::vector<ToolCall>, std::vector<int32_t>> bad[] = {
      {kCalls, more},
      {kCalls, cut},
      {{kCalls[0]}, sampled_ids(server, kCalls)},
      {kCalls, {}},
      {{}, sampled_ids(server, kCalls)}};
  int64_t refused = 0;
  for (const auto& [calls, ids] : bad) {
    store.record(calls, ids);
    EXPECT_FALSE(recalls(calls));
    EXPECT_EQ(store.stats().blocks, 0);
    EXPECT_EQ(store.stats().refused, ++refused);
  }
  EXPECT_EQ(store.stats().tokens, 0);
  EXPECT_EQ(store.stats().recalled, 0);
}

TEST_F(Replaying, IdsAreReadWhenTheyAreAskedFor) {
  std::vector<int32_t> bad = sampled_ids(server, kCalls);
  bad.pop_back();
  store.record(kCalls, bad);

  // The event loop records: it has no time to read.
  EXPECT_EQ(store.stats().blocks, 1);
  EXPECT_EQ(store.stats().refused, 0);
  EXPECT_FALSE(recalls({kCalls[1]})) << "other calls";
  EXPECT_EQ(store.stats().blocks, 1);
  EXPECT_FALSE(recalls(kCalls));
  EXPECT_EQ(store.stats().blocks, 0);
  EXPECT_EQ(store.stats().refused, 1);
}

TEST_F(Replaying, ManyThreadsMayAskAtOnce) {
  store.record(kCalls, sampled_ids(server, kCalls));
  std::atomic<int> recalled{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j)
        recalled += recalls(kCalls) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads)
    thread.join();

  EXPECT_EQ(recalled, 200);
  EXPECT_EQ(store.stats().recalled, 200);
}

TEST_F(Replaying, TheBlocksUsedLongestAgoGoFirst) {
  const auto calls_of = [](int i) {
    return std::vector<ToolCall>{
        {.id = str_cat("call_", i), .name = "f", .arguments = R"({"k": "v"})"}};
  };
  const auto size = static_cast<int64_t>(sampled_ids(server, calls_of(0)).size());
  ReplayStore small(server.tokenizer, grammar_of(server), 2 * size);
  const auto kept = [&](int i) {
    ChatConversation conversation = with_calls(calls_of(i));
    small.recall(conversation);
    return !conversation.messages[1].sampled_calls.ids.empty();
  };

  small.record(calls_of(0), sampled_ids(server, calls_of(0)));
  small.record(calls_of(1), sampled_ids(server, calls_of(1)));
  EXPECT_TRUE(kept(0));
  small.record(calls_of(2), sampled_ids(server, calls_of(2)));

  EXPECT_TRUE(kept(0));
  EXPECT_FALSE(kept(1));
  EXPECT_TRUE(kept(2));
  EXPECT_EQ(small.stats().tokens, 2 * size);
  EXPECT_EQ(small.stats().blocks, 2);
}

TEST_F(Replaying, BlocksBeyondTheStoreAreRefused) {
  ReplayStore tiny(server.tokenizer, grammar_of(server), 3);
  tiny.record(kCalls, sampled_ids(server, kCalls));
  EXPECT_EQ(tiny.stats().tokens, 0);
  EXPECT_EQ(tiny.stats().refused, 1);
}

TEST_F(Replaying, RequestsTakeThemThroughTheServedModel) {
  server.model.replay = &store;
  const std::vector<int32_t> ids = spelled(server, sampled_ids(server, {kCalls[1]}));
  const HttpRequest request =
      post_of(R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,)"
              R"("tool_calls":[{"id":"call_2","type":"function","function":{"name":"weather",)"
              R"("arguments":"{\"place\": \"Rome\"}"}}]},)"
              R"({"role":"tool","tool_call_id":"call_2","content":"sunny"}]})");
  const std::string before = render_chat(request, server.model).body;
  store.record({kCalls[1]}, ids);

  const std::string after = render_chat(request, server.model).body;

  std::string list;
  for (const int32_t id : ids)
    list += str_cat(",", id);
  EXPECT_THAT(after, testing::HasSubstr(list));
  EXPECT_THAT(before, testing::Not(testing::HasSubstr(list)));
}

TEST(CallTokens, KeepsNothingWithoutCallsOrMarkers) {
  TestServer server;
  CallTokens none(server.tokenizer, grammar_of(server));
  for (const int32_t id : server.tokenizer.encode("no calls here"))
    none.push(id);
  EXPECT_TRUE(none.take().empty());

  const auto plain = Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3");
  CallTokens unmarked(*plain, grammar_of(server));
  unmarked.push(5);
  EXPECT_TRUE(unmarked.take().empty());
}

TEST(CallTokens, EndsBeforeTheEndOfTheAnswer) {
  TestServer server;
  CallTokens tokens(server.tokenizer, grammar_of(server));
  const int32_t dsml = server.id("｜DSML｜");
  for (const int32_t id : {5, dsml, 6, dsml, *server.tokenizer.eos_id()})
    tokens.push(id);
  EXPECT_THAT(tokens.take(), testing::ElementsAre(dsml, 6, dsml));
}

}  // namespace
}  // namespace fathom::serve
