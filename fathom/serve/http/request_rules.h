// What a head of a request must fulfil before its body is read, and what routes see of it. No
// sockets here.
#pragma once

#include <cstdint>
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
  BodyCoding coding = BodyCoding::kNone;
  std::string request_id;        ///< the client's, empty if it has no good one
  std::vector<HttpHeader> cors;  ///< for every reply
  bool options = false;          ///< answered by the server itself, with these:
  std::vector<HttpHeader> option_reply;
  std::optional<ApiError> error;  ///< refused; path and request_id are set all the same
};

/// Where a request came from.
struct RequestOrigin {
  /// The server listens on the loopback alone: Host must be a name of it.
  bool loopback_bind = false;
};

RequestPlan plan_request(const RequestHead& head,
                         const HttpSettings& settings,
                         const RequestOrigin& origin);

/// error_reply, with the methods there are where the method was wrong.
HttpReply refusal_reply(const ApiError& error, std::string_view path, std::string_view request_id);

}  // namespace fathom::serve
