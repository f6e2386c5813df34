#include "fathom/serve/anthropic/message_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/os/hmac.h"
#include "fathom/serve/anthropic/messages_request.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

const ThinkingSigner& signer() {
  static const ThinkingSigner made("key");
  return made;
}

// "role: content" of each message, with what else it has.
std::string shown(const ChatConversation& conversation) {
  std::string all;
  for (const ChatMessage& message : conversation.messages) {
    str_append(all, str_cat(chat_role_name(message.role), ": ", message.content));
    if (!message.reasoning_content.empty()) {
      str_append(all, str_cat(" <", message.reasoning_content, ">"));
    }
    for (const ToolCall& call : message.tool_calls)
      str_append(all, str_cat(" ", call.name, "#", call.id, call.arguments));
    if (!message.tool_call_id.empty()) str_append(all, str_cat(" #", message.tool_call_id));
    if (message.end == TurnEnd::kContinue) str_append(all, " ...");
    str_append(all, "|");
  }
  return all;
}

struct Read {
  std::string turns;
  std::string refused;
  std::vector<std::string> places;
};

Read read(std::string_view fields, const ChatFormat& format = chat_v4()) {
  const Json body = *parse_json(str_cat("{", fields, "}"), {.max_bytes = 64 << 20}, "body");
  Fields reader(body);
  const ChatReading reading = format.reading();
  const PlacedConversation turns = read_message_turns(reader, reading, signer());
  if (reader.error()) return {.turns = {}, .refused = reader.error()->param, .places = {}};
  return {.turns = shown(turns.conversation), .refused = {}, .places = turns.places};
}

std::string user(std::string_view blocks) {
  return str_cat(R"("messages":[{"role":"user","content":)", blocks, "}]");
}

std::string assistant(std::string_view blocks) {
  return str_cat(R"("messages":[{"role":"assistant","content":)", blocks,
                 R"(},{"role":"user","content":"go"}])");
}

TEST(MessageTurns, TextsOfATurnAreJoinedAsTheFormatHasIt) {
  constexpr std::string_view kTwo = R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])";

  EXPECT_EQ(read(user("\"hi\"")).turns, "user: hi|");
  EXPECT_EQ(read(user(kTwo), chat_v4()).turns, "user: a\n\nb|");
  EXPECT_EQ(read(user(kTwo), chat_v3()).turns, "user: ab|");
  EXPECT_EQ(read(user("[]")).turns, "user: |");
}

TEST(MessageTurns, SystemComesFirst) {
  EXPECT_EQ(read(str_cat(R"("system":"s",)", user("\"hi\""))).turns, "system: s|user: hi|");
  EXPECT_EQ(read(str_cat(R"("system":[{"type":"text","text":"a","cache_control":{}},)"
                         R"({"type":"text","text":"b"}],)",
                         user("\"hi\"")))
                .turns,
            "system: a\n\nb|user: hi|");
}

TEST(MessageTurns, ASystemTurnStandsInItsPlace) {
  EXPECT_EQ(read(R"("messages":[{"role":"user","content":"a"},)"
                 R"({"role":"system","content":[{"type":"text","text":"s"}]}])")
                .turns,
            "user: a|system: s|");
}

TEST(MessageTurns, TheLineOfBillingIsLeftOut) {
  EXPECT_EQ(read(str_cat(R"("system":[{"type":"text","text":"x-anthropic-billing-header: c=1;"},)"
                         R"({"type":"text","text":"s"}],)",
                         user("\"hi\"")))
                .turns,
            "system: s|user: hi|");
  EXPECT_EQ(
      read(str_cat(R"("system":"x-anthropic-billing-header: c=1;\n s",)", user("\"hi\""))).turns,
      "system:  s|user: hi|");
  EXPECT_EQ(read(user("\"x-anthropic-billing-header: c\"")).turns,
            "user: x-anthropic-billing-header: c|");
}

TEST(MessageTurns, ResultsAreTurnsOfToolsInTheirPlaces) {
  const Read r = read(
      user(R"([{"type":"text","text":"a"},{"type":"tool_result","tool_use_id":"t1","content":"r"},)"
           R"({"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"p"},)"
           R"({"type":"text","text":"q"}]},{"type":"tool_result","tool_use_id":"t3"},)"
           R"({"type":"tool_result","tool_use_id":"t4","content":"no","is_error":true},)"
           R"({"type":"text","text":"b"},{"type":"text","text":"c"}])"));

  EXPECT_EQ(r.turns,
            "user: a|tool: r #t1|tool: p\n\nq #t2|tool:  #t3|tool: Error: no #t4|user: b\n\nc|");
  EXPECT_THAT(r.places, testing::ElementsAre("messages[0]", "messages[0].content[1]",
                                             "messages[0].content[2]", "messages[0].content[3]",
                                             "messages[0].content[4]", "messages[0]"));
}

TEST(MessageTurns, ImagesInResultsAreNamedWhereTheFormatDoesThat) {
  const std::string turn =
      user(R"([{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"},)"
           R"({"type":"text","text":"p"}]}])");

  EXPECT_EQ(read(turn, chat_v4()).turns, "tool: [Unsupported image]\n\np #t|");
  EXPECT_EQ(read(turn, chat_v32()).refused, "messages[0].content[0].content[0].type");
}

TEST(MessageTurns, AnAssistantsBlocksAreOneTurn) {
  EXPECT_EQ(read(assistant(R"([{"type":"thinking","thinking":"hm","signature":""},)"
                           R"({"type":"redacted_thinking","data":"xx"},{"type":"text","text":"a"},)"
                           R"({"type":"tool_use","id":"t1","name":"f","input":{"y":1,"x":"é"}},)"
                           R"({"type":"text","text":"b"},{"type":"tool_use","id":"t2","name":"g",)"
                           R"("input":{}}])"))
                .turns,
            "assistant: a\n\nb <hm> f#t1{\"y\": 1, \"x\": \"é\"} g#t2{}|user: go|");
}

TEST(MessageTurns, ThinkingNeedsNoSignatureButAWrongOneDoesNotHold) {
  const auto with = [](std::string_view signature) {
    return read(assistant(str_cat(R"([{"type":"thinking","thinking":"hm")", signature,
                                  R"(},{"type":"text","text":"a"}])")))
        .turns;
  };

  EXPECT_EQ(with(""), "assistant: a <hm>|user: go|");
  EXPECT_EQ(with(R"(,"signature":null)"), "assistant: a <hm>|user: go|");
  EXPECT_EQ(with(str_cat(R"(,"signature":")", signer().sign("hm"), "\"")),
            "assistant: a <hm>|user: go|");
  EXPECT_EQ(with(str_cat(R"(,"signature":")", signer().sign("other"), "\"")),
            "assistant: a|user: go|");
  EXPECT_EQ(with(R"(,"signature":"EqQBCgIYAhIM")"), "assistant: a|user: go|");
}

TEST(MessageTurns, ALastTurnOfTheAssistantIsGoneOnWith) {
  EXPECT_EQ(read(R"("messages":[{"role":"user","content":"a"},)"
                 R"({"role":"assistant","content":"The"}])")
                .turns,
            "user: a|assistant: The ...|");
  EXPECT_EQ(read(R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":)"
                 R"([{"type":"tool_use","id":"t","name":"f","input":{}}]}])")
                .turns,
            "user: a|assistant:  f#t{}|");
}

TEST(MessageTurns, WhatIsWrongIsNamedByItsPath) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("x":1)", "messages"},
      {R"("messages":{})", "messages"},
      {R"("messages":[1])", "messages[0]"},
      {R"("messages":[{"content":"a"}])", "messages[0].role"},
      {R"("messages":[{"role":"tool","content":"a"}])", "messages[0].role"},
      {R"("messages":[{"role":"user"}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":1}])", "messages[0].content"},
      {R"("messages":[{"role":"assistant","content":null}])", "messages[0].content"},
      {user(R"(["a"])"), "messages[0].content[0]"},
      {user(R"([{"text":"a"}])"), "messages[0].content[0].type"},
      {user(R"([{"type":"text"}])"), "messages[0].content[0].text"},
      {user(R"([{"type":"text","text":1}])"), "messages[0].content[0].text"},
      {user(R"([{"type":"text","text":"a"},{"type":"image"}])"), "messages[0].content[1].type"},
      {user(R"([{"type":"document"}])"), "messages[0].content[0].type"},
      {user(R"([{"type":"tool_use"}])"), "messages[0].content[0].type"},
      {user(R"([{"type":"tool_result"}])"), "messages[0].content[0].tool_use_id"},
      {user(R"([{"type":"tool_result","content":1}])"), "messages[0].content[0].tool_use_id"},
      {user(R"([{"type":"tool_result","tool_use_id":"t","is_error":1}])"),
       "messages[0].content[0].is_error"},
      {user(R"([{"type":"tool_result","tool_use_id":"t","content":1}])"),
       "messages[0].content[0].content"},
      {user(str_cat(R"([{"type":"tool_result","tool_use_id":")", std::string(257, 'x'), "\"}]")),
       "messages[0].content[0].tool_use_id"},
      {assistant(R"([{"type":"tool_result"}])"), "messages[0].content[0].type"},
      {assistant(R"([{"type":"server_tool_use"}])"), "messages[0].content[0].type"},
      {assistant(R"([{"type":"thinking"}])"), "messages[0].content[0].thinking"},
      {assistant(R"([{"type":"tool_use","name":"f","input":{}}])"), "messages[0].content[0].id"},
      {assistant(R"([{"type":"tool_use","id":"t","input":{}}])"), "messages[0].content[0].name"},
      {assistant(R"([{"type":"tool_use","id":"t","name":"f"}])"), "messages[0].content[0].input"},
      {assistant(R"([{"type":"tool_use","id":"t","name":"f","input":"{}"}])"),
       "messages[0].content[0].input"},
  };
  for (const auto& [fields, where] : cases)
    EXPECT_EQ(read(fields).refused, where) << fields;
}

std::string messages_of(size_t count, std::string_view one) {
  std::string all;
  for (size_t i = 0; i < count; ++i)
    str_append(all, str_cat(i == 0 ? "" : ",", one));
  return all;
}

TEST(MessageTurns, MessagesAndBlocksAreCounted) {
  constexpr std::string_view kTurn = R"({"role":"user","content":"a"})";
  constexpr std::string_view kBlock = R"({"type":"text","text":""})";
  const auto turns = [&](size_t count) {
    return str_cat("\"messages\":[", messages_of(count, kTurn), "]");
  };
  const auto blocks = [&](size_t count) {
    return user(str_cat("[", messages_of(count, kBlock), "]"));
  };

  EXPECT_EQ(read(turns(4'096)).refused, "");
  EXPECT_EQ(read(turns(4'097)).refused, "messages");
  EXPECT_EQ(read(blocks(8'192)).refused, "");
  EXPECT_EQ(read(blocks(8'193)).refused, "messages[0].content");
  EXPECT_EQ(read(str_cat(R"("system":[)", kBlock, "],", blocks(8'192))).refused,
            "messages[0].content");
}

TEST(MessageTurns, ErrorsOfTheFormatSpeakOfTheClientsPlaces) {
  TestServer server(chat_v32());
  const auto result = parse_messages_request(
      post_of(R"({"max_tokens":8,"system":"s","messages":[{"role":"user","content":"a"},)"
              R"({"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f",)"
              R"("input":{}}]},{"role":"user","content":[)"
              R"({"type":"tool_result","tool_use_id":"t","content":"r"},)"
              R"({"type":"tool_result","tool_use_id":"u","content":"r"}]}]})"),
      server.model, "", signer());

  const auto& error = std::get<ApiError>(result);
  EXPECT_EQ(error.param, "messages[2].content[1]");
  EXPECT_TRUE(error.message.starts_with("messages[2].content[1] is result")) << error.message;
}

TEST(ThinkingSigner, KeysDifferByProcessAndServer) {
  const ThinkingSigner one;
  const ThinkingSigner other;

  EXPECT_EQ(signer().sign("hm"), to_hex(hmac_sha256("key", "hm")));
  EXPECT_TRUE(one.holds("hm", one.sign("hm")));
  EXPECT_FALSE(one.holds("hm", other.sign("hm")));
  EXPECT_FALSE(one.holds("hm ", one.sign("hm")));
  EXPECT_FALSE(one.holds("hm", ""));
}

}  // namespace
}  // namespace fathom::serve
