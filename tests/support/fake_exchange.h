// An exchange without a socket: keeps what a route answers. And an event loop that tests turn.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "fathom/serve/exchange.h"

namespace fathom::serve {

class FakeExchange final : public Exchange {
 public:
  explicit FakeExchange(HttpRequest request) : request_(std::move(request)) {}

  static std::shared_ptr<FakeExchange> post(std::string path, std::string body) {
    HttpRequest r;
    r.method = "POST";
    r.path = std::move(path);
    r.headers = {{"Content-Type", "application/json"}};
    r.body = std::move(body);
    return std::make_shared<FakeExchange>(std::move(r));
  }

  static std::shared_ptr<FakeExchange> get(std::string path) {
    HttpRequest r;
    r.method = "GET";
    r.path = std::move(path);
    return std::make_shared<FakeExchange>(std::move(r));
  }

  const HttpRequest& request() const override { return request_; }

  const std::string& id() const override { return id_; }

  void release_body() override { std::string().swap(request_.body); }

  void reply(HttpReply r) override {
    if (ended_ || gone_) return;
    ended_ = true;
    head = std::move(r);
    body = head.body;
  }

  void begin_stream(HttpReply r, StreamRules stream_rules) override {
    if (ended_ || gone_) return;
    streamed = true;
    head = std::move(r);
    rules = std::move(stream_rules);
    if (!head.body.empty()) pieces.push_back(head.body);
    body = head.body;
  }

  void send(std::string piece) override {
    if (ended_ || gone_) return;
    body += piece;
    pieces.push_back(std::move(piece));
  }

  void end_stream() override { ended_ = true; }

  void on_gone(std::function<void()> listener) override {
    if (gone_) {
      listener();
    } else {
      listener_ = std::move(listener);
    }
  }

  void on_silence(std::function<void()> listener) override {
    silence_listener_ = std::move(listener);
  }

  bool gone() const override { return gone_; }

  bool ended() const { return ended_; }

  /// The client leaves.
  void leave() {
    if (ended_ || gone_) return;
    gone_ = true;
    if (const auto listener = std::move(listener_)) listener();
  }

  /// Whether somebody wants to hear of silence.
  bool awaits_silence() const { return silence_listener_ != nullptr; }

  /// Nothing was answered for the ping interval. Nothing happens where something was.
  void stay_silent() {
    if (ended_ || gone_ || streamed) return;
    if (const auto listener = std::move(silence_listener_)) listener();
  }

  HttpReply head;
  StreamRules rules;
  bool streamed = false;
  std::string body;  ///< all pieces together
  std::vector<std::string> pieces;

 private:
  HttpRequest request_;
  std::string id_ = "req-test";
  bool ended_ = false;
  bool gone_ = false;
  std::function<void()> listener_;
  std::function<void()> silence_listener_;
};

/// Functions that were posted, run by the test.
class FakeLoop {
 public:
  Post post() {
    return [this](std::function<void()> f) {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(f));
    };
  }

  /// Runs what was posted. False if there was nothing.
  bool turn() {
    std::deque<std::function<void()>> batch;
    {
      const std::lock_guard lock(mutex_);
      batch.swap(posted_);
    }
    for (const auto& f : batch)
      f();
    return !batch.empty();
  }

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> posted_;
};

}  // namespace fathom::serve
