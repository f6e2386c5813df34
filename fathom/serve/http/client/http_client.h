// A client of HTTP/1.1, plain and over TLS: any number of calls at once on the thread that runs its
// loop. Replies are whole, or arrive piece by piece (server-sent events go through serve/sse.h).
//
//   auto client = HttpClient::create({.base_url = "http://127.0.0.1:8000"});
//   (*client)->start({.method = "POST", .path = "/v1/completions", .body = ...}, listener);
//   (*client)->run();  // until nothing is left to do
//
// Connections are kept and used again. A call that finds its kept connection closed by the server
// before a byte of the reply came is sent once more, on a new one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/serve/exchange.h"
#include "fathom/serve/http/client/base_url.h"

namespace fathom::serve {

/// Whether a server must prove by a certificate who it is.
enum class Certificates : uint8_t { kVerify, kAcceptAny };

struct HttpClientOptions {
  std::string base_url;
  Certificates certificates = Certificates::kVerify;  ///< against the system's authorities
  double connect_timeout_s = 10;                      ///< name, connection and TLS
  double total_timeout_s = 600;                       ///< of a call, up to its last byte; 0: none
  std::vector<HttpHeader> headers{};                  ///< of every call, such as Authorization
};

struct ClientCall {
  std::string method = "GET";
  std::string path;    ///< behind the prefix of the base URL: "/v1/models"
  std::string body{};  ///< JSON
  std::vector<HttpHeader> headers{};
};

/// Status line and headers of a reply.
struct ReplyHead {
  int status = 0;
  std::string reason;
  std::vector<HttpHeader> headers;

  /// The value of a header, names compared without case; empty if it is absent.
  std::string_view header(std::string_view name) const;
};

/// Why a call ended without its reply.
enum class CallFault : uint8_t {
  kNone,  ///< the reply is complete, whatever its status
  kConnect,
  kTls,
  kTimeout,
  kClosed,       ///< the connection ended within the exchange
  kBrokenReply,  ///< what came is no HTTP
  kCancelled,
};

/// "connect", "timeout", ...: for counts of errors.
std::string_view call_fault_name(CallFault fault);

/// What is told of a call, on the thread of the loop, never from within start() or cancel().
struct CallListener {
  std::function<void(const ReplyHead&)> on_head{};
  std::function<void(std::string_view)> on_body{};  ///< pieces, as they come
  /// Once, last. The status is an error unless the fault is kNone: Unavailable, Corrupt, Io or
  /// Cancelled; its message names address and call.
  std::function<void(CallFault, const Status&)> on_end{};
};

struct ClientReply {
  ReplyHead head;
  std::string body;
};

using CallId = uint64_t;
using TimerId = uint64_t;

/// Not thread-safe: all calls come from the thread of the loop.
class HttpClient {
 public:
  /// Errors: InvalidArgument for the address, Unavailable where TLS cannot be set up.
  static Result<std::unique_ptr<HttpClient>> create(const HttpClientOptions& options);
  virtual ~HttpClient() = default;

  virtual const BaseUrl& url() const = 0;

  /// Sends a call as soon as the loop runs.
  virtual CallId start(ClientCall call, CallListener listener) = 0;

  /// Closes the connection of a call, which ends with kCancelled. One that ended is no error.
  virtual void cancel(CallId id) = 0;

  /// Calls a function on the loop, after that time, unless it is dropped before.
  virtual TimerId after(int64_t delay_ns, std::function<void()> then) = 0;
  virtual void drop(TimerId id) = 0;

  /// Runs the loop until no call and no timer is left.
  virtual void run() = 0;

  /// One call and its whole reply, of at most `max_bytes`. Runs the loop: for use between runs.
  /// Errors: Unavailable (kCancelled never, so that a timeout is not taken for Ctrl-C), Corrupt,
  /// Io.
  Result<ClientReply> fetch(ClientCall call, int64_t max_bytes = int64_t{64} << 20);
};

}  // namespace fathom::serve
