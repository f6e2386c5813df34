// What joins an exchange, which threads of the engine and the routes use, with its connection,
// which lives on the loop. Output gathers here until the loop takes it: many send() of one turn of
// the loop become one write.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "fathom/serve/exchange.h"
#include "fathom/serve/http/loop.h"

namespace fathom::serve {

/// Bytes of requests that the process holds, over all connections. Thread-safe.
class InputBudget {
 public:
  explicit InputBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}

  bool take(int64_t bytes) {
    if (held_.fetch_add(bytes) + bytes <= max_bytes_) return true;
    held_.fetch_sub(bytes);
    return false;
  }

  void give(int64_t bytes) { held_.fetch_sub(bytes); }

  int64_t held_bytes() const { return held_.load(); }

 private:
  int64_t max_bytes_;
  std::atomic<int64_t> held_{0};
};

/// A part of the budget, given back with the object.
class InputCharge {
 public:
  InputCharge() = default;

  explicit InputCharge(std::shared_ptr<InputBudget> budget) : budget_(std::move(budget)) {}

  InputCharge(InputCharge&& other) noexcept;
  InputCharge& operator=(InputCharge&& other) noexcept;
  ~InputCharge();

  /// Makes the part `bytes` large. False, and as before, when the budget has not so much.
  bool resize(int64_t bytes);

  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<InputBudget> budget_;
  int64_t bytes_ = 0;
};

/// The connection's end of a channel. Called on the loop.
class ReplySink {
 public:
  virtual ~ReplySink() = default;

  /// There is something to take.
  virtual void on_output() = 0;
};

class ReplyChannel : public std::enable_shared_from_this<ReplyChannel> {
 public:
  /// What gathered since the last time.
  struct Output {
    bool begins = false;   ///< `head` and `rules` are set
    bool streams = false;  ///< pieces follow; else the head's body is all
    bool ends = false;
    bool cut = false;  ///< the stream was let go before its end
    HttpReply head;
    StreamRules rules;
    std::string pieces;
  };

  ReplyChannel(std::shared_ptr<Loop> loop, std::shared_ptr<ReplySink> sink);

  // For the exchange, from any thread.
  void reply(HttpReply reply);
  void begin_stream(HttpReply head, StreamRules rules);
  void send(std::string piece);
  void end_stream();
  void on_gone(std::function<void()> listener);
  void on_silence(std::function<void()> listener);
  bool gone() const;

  /// The exchange has no owner any more. True if nothing was answered.
  bool let_go();

  // For the connection, on the loop.
  Output take();
  void client_gone();

  /// Nothing was answered for long. May be told again and again.
  void silent();

  /// The connection needs nothing more.
  void detach();

 private:
  enum class Stage : uint8_t { kOpen, kStreaming, kEnded };

  using Listener = std::function<void()>;

  // What is heard of: a client that goes, and that nothing is answered.
  struct Listeners {
    Listener gone;
    Listener silence;
  };

  // With the lock. What listeners own is let go by the caller, without it.
  void wake();
  Listeners end();

  std::shared_ptr<Loop> loop_;
  mutable std::mutex mutex_;
  std::shared_ptr<ReplySink> sink_;
  Stage stage_ = Stage::kOpen;
  bool gone_ = false;
  bool woken_ = false;
  Output output_;
  Listeners listeners_;
};

/// The exchange that handlers get. The channel outlives it, the request does not.
class SocketExchange final : public Exchange {
 public:
  SocketExchange(HttpRequest request,
                 std::string id,
                 InputCharge charge,
                 std::shared_ptr<ReplyChannel> channel);
  ~SocketExchange() override;

  const HttpRequest& request() const override { return request_; }

  const std::string& id() const override { return id_; }

  void release_body() override;

  void reply(HttpReply r) override { channel_->reply(std::move(r)); }

  void begin_stream(HttpReply head, StreamRules rules) override {
    channel_->begin_stream(std::move(head), std::move(rules));
  }

  void send(std::string piece) override { channel_->send(std::move(piece)); }

  void end_stream() override { channel_->end_stream(); }

  void on_gone(std::function<void()> listener) override { channel_->on_gone(std::move(listener)); }

  void on_silence(std::function<void()> listener) override {
    channel_->on_silence(std::move(listener));
  }

  bool gone() const override { return channel_->gone(); }

 private:
  HttpRequest request_;
  std::string id_;
  InputCharge charge_;
  std::shared_ptr<ReplyChannel> channel_;
};

}  // namespace fathom::serve
