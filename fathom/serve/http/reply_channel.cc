#include "fathom/serve/http/reply_channel.h"

#include <utility>

#include "fathom/serve/http/request_rules.h"

namespace fathom::serve {

InputCharge::InputCharge(InputCharge&& other) noexcept
    : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}

InputCharge& InputCharge::operator=(InputCharge&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

InputCharge::~InputCharge() {
  if (budget_) budget_->give(bytes_);
}

bool InputCharge::resize(int64_t bytes) {
  if (bytes > bytes_) {
    if (!budget_->take(bytes - bytes_)) return false;
  } else {
    budget_->give(bytes_ - bytes);
  }
  bytes_ = bytes;
  return true;
}

ReplyChannel::ReplyChannel(std::shared_ptr<Loop> loop, std::shared_ptr<ReplySink> sink)
    : loop_(std::move(loop)), sink_(std::move(sink)) {}

void ReplyChannel::wake() {
  if (std::exchange(woken_, true)) return;
  loop_->post([self = shared_from_this()] {
    std::shared_ptr<ReplySink> sink;
    {
      const std::lock_guard lock(self->mutex_);
      self->woken_ = false;
      sink = self->sink_;
    }
    if (sink) sink->on_output();
  });
}

// What the listener owns is let go by the caller, without the lock.
std::function<void()> ReplyChannel::end() {
  stage_ = Stage::kEnded;
  output_.ends = true;
  wake();
  return std::exchange(listener_, nullptr);
}

void ReplyChannel::reply(HttpReply r) {
  std::function<void()> listener;
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ != Stage::kOpen) return;
  output_.begins = true;
  output_.head = std::move(r);
  listener = end();
}

void ReplyChannel::begin_stream(HttpReply head, StreamRules rules) {
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ != Stage::kOpen) return;
  stage_ = Stage::kStreaming;
  output_.begins = true;
  output_.streams = true;
  output_.pieces = std::move(head.body);
  head.body.clear();
  output_.head = std::move(head);
  output_.rules = std::move(rules);
  wake();
}

void ReplyChannel::send(std::string piece) {
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ != Stage::kStreaming || piece.empty()) return;
  if (output_.pieces.empty()) {
    output_.pieces = std::move(piece);
  } else {
    output_.pieces += piece;
  }
  wake();
}

void ReplyChannel::end_stream() {
  std::function<void()> listener;
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ != Stage::kStreaming) return;
  listener = end();
}

void ReplyChannel::on_gone(std::function<void()> listener) {
  {
    std::function<void()> replaced;
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      if (stage_ != Stage::kEnded) replaced = std::exchange(listener_, std::move(listener));
      return;
    }
  }
  if (loop_->on_loop()) {
    listener();
  } else {
    loop_->post(std::move(listener));
  }
}

bool ReplyChannel::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

bool ReplyChannel::let_go() {
  std::function<void()> listener;
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ == Stage::kEnded) return false;
  if (stage_ == Stage::kOpen) return true;
  output_.cut = true;
  listener = end();
  return false;
}

ReplyChannel::Output ReplyChannel::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(output_, Output());
}

void ReplyChannel::client_gone() {
  std::function<void()> listener;
  Output dropped;
  {
    const std::lock_guard lock(mutex_);
    sink_.reset();
    if (stage_ == Stage::kEnded) return;
    gone_ = true;
    listener = std::exchange(listener_, nullptr);
    std::swap(dropped, output_);
  }
  if (listener) listener();
}

void ReplyChannel::detach() {
  const std::lock_guard lock(mutex_);
  sink_.reset();
}

SocketExchange::SocketExchange(HttpRequest request,
                               std::string id,
                               InputCharge charge,
                               std::shared_ptr<ReplyChannel> channel)
    : request_(std::move(request)),
      id_(std::move(id)),
      charge_(std::move(charge)),
      channel_(std::move(channel)) {}

SocketExchange::~SocketExchange() {
  if (!channel_->let_go()) return;
  channel_->reply(refusal_reply({.status = 500,
                                 .code = "internal_error",
                                 .message = "the server had an internal error; its log says more",
                                 .param = {}},
                                request_.path, id_));
}

}  // namespace fathom::serve
