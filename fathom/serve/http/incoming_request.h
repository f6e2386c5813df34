// A request on its way in: framing, the rules, unpacking of the body and the budget of memory,
// together. No sockets here; the bytes may come in any pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "fathom/serve/api_error.h"
#include "fathom/serve/http/body_unpacker.h"
#include "fathom/serve/http/framing.h"
#include "fathom/serve/http/http_settings.h"
#include "fathom/serve/http/reply_channel.h"
#include "fathom/serve/http/request_rules.h"

namespace fathom::serve {

class IncomingRequest {
 public:
  enum class Stage : uint8_t {
    kHead,
    kBody,
    kReady,    ///< whole: to be answered by a handler, or by option_reply
    kRefused,  ///< to be answered with error()
  };

  /// Settings and rules outlive it.
  IncomingRequest(const HttpSettings& settings,
                  const HeadRules& rules,
                  std::shared_ptr<InputBudget> budget);

  /// Takes bytes from the front of `in` until the request is ready or refused; the rest is of the
  /// next one.
  Stage feed(std::string_view& in);

  Stage stage() const { return stage_; }

  bool done() const { return stage_ == Stage::kReady || stage_ == Stage::kRefused; }

  const RequestHead& head() const { return reader_.head(); }

  const RequestPlan& plan() const { return plan_; }

  /// After kRefused.
  const ApiError& error() const { return error_; }

  /// Whether another request may follow: not after a fault of framing, nor with a body unread.
  bool reusable() const { return reusable_; }

  bool begun() const { return reader_.begun(); }

  /// Of the body, as sent, so far.
  int64_t body_bytes() const { return body_bytes_; }

  /// Once: whether the client waits for "100 Continue" before it sends the body.
  bool take_wants_continue();

  /// After kReady: what a handler gets, and the memory that it stands for.
  HttpRequest take_request();

  InputCharge take_charge() { return std::move(charge_); }

  /// Refuses it from outside: a timeout.
  void refuse(ApiError error);

 private:
  Stage on_head();
  Stage on_piece();
  bool charge();

  const HttpSettings& settings_;
  const HeadRules& rules_;
  RequestReader reader_;
  RequestPlan plan_;
  Stage stage_ = Stage::kHead;
  std::unique_ptr<BodyUnpacker> unpacker_;
  std::string body_;
  int64_t body_bytes_ = 0;
  bool reusable_ = false;
  bool wants_continue_ = false;
  ApiError error_;
  InputCharge charge_;
};

}  // namespace fathom::serve
