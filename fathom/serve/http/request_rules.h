// What a head of a request must fulfil before its body is read, and what routes see of it. No
// sockets here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "fathom/serve/api_error.h"
#include "fathom/serve/http/framing.h"
#include "fathom/serve/http/http_settings.h"

namespace fathom::serve {

enum class BodyCoding : uint8_t { kNone, kGzip, kZstd };

/// What the head says, read.
struct RequestPlan {
  std::string path;   ///< decoded, without root path
  std::string query;  ///< as sent
  /// A body that comes is read. That of a GET or OPTIONS means nothing: it is left unread, so that
  /// nobody fills memory by way of a route that asks for no key.
  bool reads_body = false;
  BodyCoding coding = BodyCoding::kNone;
  std::string request_id;        ///< the client's, empty if it has no good one
  std::vector<HttpHeader> cors;  ///< for every reply
  bool options = false;          ///< answered by the server itself, with these:
  std::vector<HttpHeader> option_reply;
  std::optional<ApiError> error;  ///< refused; path and request_id are set all the same
};

/// Judges a request by its head, on the event loop, before a byte of its body is taken. What it
/// gets has no body. An error is the reply, behind which the connection ends if a body was to come.
using HttpGate = std::function<std::optional<ApiError>(const HttpRequest& head)>;

/// Told of each error that is answered before a handler has seen the request, on the server's
/// thread. May be empty.
using RefusalObserver = std::function<void(const ApiError&)>;

/// What heads are judged by besides the settings.
struct HeadRules {
  /// The server listens on the loopback alone: Host must be a name of it.
  bool loopback_bind = false;
  HttpGate gate{};  ///< may be empty: everybody may pass
};

/// In this order: target, Host, method, gate, body. Whoever is not let in learns nothing of the
/// rules behind. OPTIONS passes no gate: browsers ask so without a key, and the server answers.
RequestPlan plan_request(const RequestHead& head,
                         const HttpSettings& settings,
                         const HeadRules& rules);

/// error_reply, with the methods there are where the method was wrong.
HttpReply refusal_reply(const ApiError& error, std::string_view path, std::string_view request_id);

}  // namespace fathom::serve
