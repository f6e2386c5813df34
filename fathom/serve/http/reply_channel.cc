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

ReplyChannel::Listeners ReplyChannel::end() {
  stage_ = Stage::kEnded;
  output_.ends = true;
  wake();
  return std::exchange(listeners_, Listeners());
}

void ReplyChannel::reply(HttpReply r) {
  Listeners dropped;
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ != Stage::kOpen) return;
  output_.begins = true;
  output_.head = std::move(r);
  dropped = end();
}

void ReplyChannel::begin_stream(HttpReply head, StreamRules rules) {
  Listener dropped;
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ != Stage::kOpen) return;
  stage_ = Stage::kStreaming;
  dropped = std::exchange(listeners_.silence, nullptr);
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
  Listeners dropped;
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ != Stage::kStreaming) return;
  dropped = end();
}

void ReplyChannel::on_gone(std::function<void()> listener) {
  {
    Listener replaced;
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      if (stage_ != Stage::kEnded) replaced = std::exchange(listeners_.gone, std::move(listener));
      return;
    }
  }
  if (loop_->on_loop()) {
    listener();
  } else {
    loop_->post(std::move(listener));
  }
}

void ReplyChannel::on_silence(std::function<void()> listener) {
  Listener replaced;
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ != Stage::kOpen) return;
  replaced = std::exchange(listeners_.silence, std::move(listener));
}

bool ReplyChannel::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

bool ReplyChannel::let_go() {
  Listeners dropped;
  const std::lock_guard lock(mutex_);
  if (gone_ || stage_ == Stage::kEnded) return false;
  if (stage_ == Stage::kOpen) return true;
  output_.cut = true;
  dropped = end();
  return false;
}

ReplyChannel::Output ReplyChannel::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(output_, Output());
}

void ReplyChannel::client_gone() {
  Listeners listeners;
  Output dropped;
  {
    const std::lock_guard lock(mutex_);
    sink_.reset();
    if (stage_ == Stage::kEnded) return;
    gone_ = true;
    listeners = std::exchange(listeners_, Listeners());
    std::swap(dropped, output_);
  }
  if (listeners.gone) listeners.gone();
}

void ReplyChannel::silent() {
  Listener listener;
  {
    const std::lock_guard lock(mutex_);
    if (stage_ != Stage::kOpen) return;
    listener = std::exchange(listeners_.silence, nullptr);
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

void SocketExchange::release_body() {
  if (request_.body.empty()) return;
  const auto bytes = static_cast<int64_t>(request_.body.capacity());
  std::string().swap(request_.body);  // an assignment would keep the memory
  charge_.resize(charge_.bytes() - bytes);
}

SocketExchange::~SocketExchange() {
  if (!channel_->let_go()) return;
  channel_->reply(refusal_reply({.status = 500,
                                 .code = "internal_error",
                                 .message = "the server had an internal error; its log says more",
                                 .param = {}},
                                request_.path, id_));
}

}  // namespace fathom::serve
