#include "fathom/serve/http/incoming_request.h"

#include <utility>

namespace fathom::serve {
namespace {

FramingLimits limits_of(const HttpSettings& settings) {
  FramingLimits limits = settings.framing;
  limits.max_body_bytes = settings.max_body_bytes;
  return limits;
}

}  // namespace

IncomingRequest::IncomingRequest(const HttpSettings& settings,
                                 const HeadRules& rules,
                                 std::shared_ptr<InputBudget> budget)
    : settings_(settings),
      rules_(rules),
      reader_(limits_of(settings)),
      charge_(std::move(budget)) {}

void IncomingRequest::refuse(ApiError error) {
  stage_ = Stage::kRefused;
  error_ = std::move(error);
  std::string().swap(body_);  // an assignment would keep the memory
  unpacker_.reset();
  charge_.resize(0);
}

IncomingRequest::Stage IncomingRequest::feed(std::string_view& in) {
  while (!done()) {
    switch (reader_.next(in)) {
      case RequestReader::Event::kNeedMore:
        charge();
        return stage_;
      case RequestReader::Event::kHead:
        stage_ = on_head();
        break;
      case RequestReader::Event::kBody:
        stage_ = on_piece();
        break;
      case RequestReader::Event::kDone:
        reusable_ = true;
        if (unpacker_) {
          const Status whole = unpacker_->finish();
          if (!whole.ok()) {
            refuse({.status = 400, .code = "bad_request", .message = whole.message(), .param = {}});
            break;
          }
          unpacker_.reset();
        }
        stage_ = Stage::kReady;
        charge();
        break;
      case RequestReader::Event::kError: {
        const FramingError& e = reader_.error();
        // Whose API it is shows in the target, if that much could be read. Refused it is anyhow.
        if (stage_ == Stage::kHead) plan_ = plan_request(reader_.head(), settings_, {});
        refuse({.status = e.status, .code = e.code, .message = e.message, .param = {}});
        break;
      }
    }
  }
  return stage_;
}

IncomingRequest::Stage IncomingRequest::on_head() {
  plan_ = plan_request(reader_.head(), settings_, rules_);
  if (plan_.error) {
    reusable_ = !reader_.head().has_body();
    refuse(*plan_.error);
    return Stage::kRefused;
  }
  // A body that nobody reads stays where it is: the connection ends behind the reply.
  if (reader_.head().has_body() && !plan_.reads_body)
    return charge() ? Stage::kReady : Stage::kRefused;
  auto unpacker = BodyUnpacker::make(plan_.coding);
  if (!unpacker.ok()) {
    refuse(fathom::serve::api_error(unpacker.status()));
    return Stage::kRefused;
  }
  unpacker_ = std::move(unpacker).value();
  const RequestHead& head = reader_.head();
  wants_continue_ = head.expects_continue && head.has_body() &&
                    head.content_length.value_or(0) <= settings_.max_body_bytes;
  return Stage::kBody;
}

IncomingRequest::Stage IncomingRequest::on_piece() {
  const std::string_view piece = reader_.body_piece();
  body_bytes_ += static_cast<int64_t>(piece.size());
  wants_continue_ = false;  // it did not wait
  if (unpacker_) {
    const Status unpacked = unpacker_->unpack(piece, body_, settings_.max_body_bytes);
    if (!unpacked.ok()) {
      const bool large = unpacked.code() == StatusCode::kOutOfMemory;
      refuse({.status = large ? 413 : 400,
              .code = large ? "body_too_large" : "bad_request",
              .message = unpacked.message(),
              .param = {}});
      return stage_;
    }
  } else {
    body_.append(piece);
  }
  return charge() ? stage_ : Stage::kRefused;
}

bool IncomingRequest::charge() {
  int64_t held = reader_.held_bytes() + static_cast<int64_t>(body_.capacity());
  if (unpacker_) held += unpacker_->held_bytes();
  if (charge_.resize(held)) return true;
  refuse({.status = 503,
          .code = "overloaded",
          .message = "the requests that are being read take all the memory they may",
          .param = {},
          .retry_after_s = 1});
  reusable_ = false;
  return false;
}

bool IncomingRequest::take_wants_continue() {
  return stage_ == Stage::kBody && std::exchange(wants_continue_, false);
}

HttpRequest IncomingRequest::take_request() {
  HttpRequest request;
  request.method = std::move(reader_.head().method);
  request.path = std::move(plan_.path);
  request.query = std::move(plan_.query);
  request.headers = std::move(reader_.head().headers);
  request.body = std::move(body_);
  return request;
}

}  // namespace fathom::serve
