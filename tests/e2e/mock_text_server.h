// A server of the text routes whose answers can be foretold: it says "w0 w1 ..." for as many tokens
// as are asked, counts words as tokens, and finds the words that a prompt shares with an earlier
// one in its cache.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"
#include "tests/support/scripted_server.h"

namespace fathom::e2e {

struct MockBehaviour {
  bool tokenizes = true;
  bool names_vocabulary = true;
  int64_t fail_every = 0;    ///< each so-manieth text request gets 429; 0: none
  int64_t cut_every = 0;     ///< each so-manieth stream ends within the answer
  bool calls_tools = false;  ///< chat answers call a tool
  bool reasons = false;      ///< chat answers begin with reasoning
  bool simulates_acceptance = false;
  std::string key{};  ///< of Authorization; empty: none is needed
  int64_t token_delay_ms = 0;
};

class MockTextServer {
 public:
  explicit MockTextServer(MockBehaviour behaviour = {})
      : behaviour_(std::move(behaviour)),
        server_([this](const ScriptedExchange& e) { return answer(e); }) {}

  std::string url() const { return server_.url(); }

  /// Bodies of text requests, in the order they came.
  std::vector<Json> bodies() const {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }

  int64_t most_at_once() const {
    const std::lock_guard lock(mutex_);
    return most_at_once_;
  }

  /// Streams that the client closed before their end.
  int64_t left() const {
    const std::lock_guard lock(mutex_);
    return left_;
  }

 private:
  using Then = ScriptedServer::Then;
  using Words = std::vector<std::string>;

  static Words words_of(std::string_view text) {
    Words words;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find_first_of(" \n", at), text.size());
      if (end > at) words.emplace_back(text.substr(at, end - at));
      at = end + 1;
    }
    return words;
  }

  Then answer(const ScriptedExchange& e) {
    const std::string json = "Content-Type: application/json\r\n";
    if (!behaviour_.key.empty() &&
        e.head.find("Authorization: Bearer " + behaviour_.key) == std::string::npos) {
      e.reply(401,
              R"({"error":{"message":"no key","type":"authentication_error",)"
              R"("param":null,"code":"invalid_api_key"}})",
              json);
    } else if (e.asks("/v1/models")) {
      const std::string meta = behaviour_.names_vocabulary ? R"(,"meta":{"vocab":1000})" : "";
      e.reply(200, R"({"object":"list","data":[{"id":"mock","root":"/models/mock")" + meta + "}]}",
              json);
    } else if (e.asks("/server_info")) {
      e.reply(200,
              behaviour_.simulates_acceptance ? R"({"speculation":{"simulated_acceptance":0.7}})"
                                              : "{}",
              json);
    } else if (e.asks("/detokenize") && behaviour_.tokenizes) {
      detokenize(e);
    } else if (e.asks("/tokenize") && behaviour_.tokenizes) {
      tokenize(e);
    } else if (e.asks("POST /v1/")) {
      return stream(e);
    } else {
      e.reply(404, R"({"error":{"message":"no such route","code":"route_not_found"}})", json);
    }
    return Then::kKeep;
  }

  void tokenize(const ScriptedExchange& e) {
    const Json body = parse(e.body);
    JsonWriter out;
    if (body.find("messages") != nullptr) {
      out.begin_object().key("count").integer(static_cast<int64_t>(prompt_of(body).size()));
      out.key("max_model_len").integer(100).end_object();
      e.reply(200, out.take());
      return;
    }
    out.begin_object().key("tokens").begin_array();
    const std::lock_guard lock(mutex_);
    for (const std::string& word : words_of(body.find("prompt")->as_string())) {
      auto [at, fresh] = ids_.emplace(word, static_cast<int64_t>(vocabulary_.size()));
      if (fresh) vocabulary_.push_back(word);
      out.integer(at->second);
    }
    out.end_array().end_object();
    e.reply(200, out.take());
  }

  void detokenize(const ScriptedExchange& e) {
    const Json body = parse(e.body);
    std::string text;
    const std::lock_guard lock(mutex_);
    for (const Json& id : body.find("tokens")->items())
      text += (text.empty() ? "" : " ") + vocabulary_[static_cast<size_t>(id.as_int())];
    e.reply(200, dump_json(Json::object({{"prompt", Json::string(text)}})));
  }

  static Json parse(const std::string& text) {
    auto json = parse_json(text, {}, "the request");
    FATHOM_CHECK(json.ok(), json.ok() ? "" : json.status().message());
    return std::move(json).value();
  }

  static Words prompt_of(const Json& body) {
    Words words;
    if (const Json* prompt = body.find("prompt"); prompt != nullptr && prompt->is_array()) {
      for (const Json& id : prompt->items())
        words.push_back(std::to_string(id.as_int()));
    } else if (prompt != nullptr) {
      words = words_of(prompt->as_string());
    } else {
      for (const Json& message : body.find("messages")->items()) {
        for (std::string& word : words_of(message.find("content")->as_string()))
          words.push_back(std::move(word));
      }
    }
    return words;
  }

  static int64_t tokens_asked(const Json& body) {
    for (const char* name : {"max_tokens", "max_completion_tokens"}) {
      if (const Json* n = body.find(name)) return n->as_int();
    }
    return 4;
  }

  int64_t cached_words(const Words& prompt) {
    int64_t most = 0;
    for (const Words& seen : prompts_) {
      const auto ends = std::mismatch(seen.begin(), seen.end(), prompt.begin(), prompt.end());
      most = std::max<int64_t>(most, ends.first - seen.begin());
    }
    prompts_.push_back(prompt);
    return most;
  }

  Then stream(const ScriptedExchange& e) {
    const Json body = parse(e.body);
    int64_t number = 0, cached = 0;
    const Words prompt = prompt_of(body);
    {
      const std::lock_guard lock(mutex_);
      bodies_.push_back(body);
      number = static_cast<int64_t>(bodies_.size());
      cached = cached_words(prompt);
      most_at_once_ = std::max(most_at_once_, ++at_once_);
    }
    const Then then = write_stream(e, body, number, cached, static_cast<int64_t>(prompt.size()));
    const std::lock_guard lock(mutex_);
    --at_once_;
    return then;
  }

  static bool every(int64_t number, int64_t n) { return n > 0 && number % n == 0; }

  Then write_stream(
      const ScriptedExchange& e, const Json& body, int64_t number, int64_t cached, int64_t prompt) {
    if (every(number, behaviour_.fail_every)) {
      e.reply(429, R"({"error":{"message":"the queue is full","type":"rate_limit_error",)"
                   R"("param":null,"code":"queue_full"}})");
      return Then::kKeep;
    }
    const bool chat = e.asks("/v1/chat/completions");
    const int64_t count = tokens_asked(body);
    e.send(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    if (chat) send_event(e, R"({"choices":[{"delta":{"role":"assistant","content":""}}]})");
    for (int64_t i = 0; i < count; ++i) {
      if (every(number, behaviour_.cut_every) && i == count / 2) return Then::kClose;
      if (behaviour_.token_delay_ms > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(behaviour_.token_delay_ms));
      }
      if (send_event(e, token(chat, i, count))) continue;
      const std::lock_guard lock(mutex_);
      ++left_;
      return Then::kClose;
    }
    const std::string end = chat ? R"("delta":{})" : R"("text":"")";
    send_event(e, "{\"choices\":[{" + end + ",\"finish_reason\":\"length\"}]}");
    const auto n = [](int64_t v) { return std::to_string(v); };
    send_event(e, R"({"choices":[],"usage":{"prompt_tokens":)" + n(prompt) +
                      R"(,"completion_tokens":)" + n(count) +
                      R"(,"prompt_tokens_details":{"cached_tokens":)" + n(cached) + "}}}");
    e.chunk("data: [DONE]\n\n");
    e.chunk("");
    return Then::kKeep;
  }

  std::string token(bool chat, int64_t i, int64_t count) const {
    const std::string word = "w" + std::to_string(i) + " ";
    if (!chat) return "{\"choices\":[{\"text\":\"" + word + "\"}]}";
    if (behaviour_.reasons && i < count / 2) {
      return R"({"choices":[{"delta":{"reasoning_content":")" + word + "\"}}]}";
    }
    if (behaviour_.calls_tools && i == count - 1) {
      return R"({"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function",)"
             R"("function":{"name":"search","arguments":"{}"}}]}}]})";
    }
    return "{\"choices\":[{\"delta\":{\"content\":\"" + word + "\"}}]}";
  }

  static bool send_event(const ScriptedExchange& e, const std::string& data) {
    return e.chunk("data: " + data + "\n\n");
  }

  MockBehaviour behaviour_;
  mutable std::mutex mutex_;
  std::vector<Json> bodies_;
  std::vector<Words> prompts_;
  std::map<std::string, int64_t> ids_;
  std::vector<std::string> vocabulary_;
  int64_t at_once_ = 0;
  int64_t most_at_once_ = 0;
  int64_t left_ = 0;
  ScriptedServer server_;  // last: its threads use what is above
};

}  // namespace fathom::e2e
