// A request over HTTP and its reply, free of sockets: what serve/http gives to routes, and what
// tests make by hand.
//
//   connection (event loop) --HttpRequest--> route --reply() or begin_stream(), send() ...-->
//   client
//
// A route may answer at once, or keep the Exchange and answer from any thread. Whoever lets the
// last reference go without an answer has the exchange answer 500 by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::serve {

using HttpHeader = std::pair<std::string, std::string>;

/// A request that was read whole. Its body is unpacked (gzip, zstd) and within the limits.
struct HttpRequest {
  std::string method;  ///< "POST"
  std::string path;    ///< "/v1/models/x": without query and root path, percent-escapes decoded
  std::string query;   ///< behind '?', as it came
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;          ///< "127.0.0.1:51234", for logs
  bool on_loopback = false;  ///< of the socket it came to
  int64_t received_ns = 0;   ///< monotonic: when its last byte came

  /// The value of a header, names compared without case; empty if it is absent.
  std::string_view header(std::string_view name) const;

  /// The value of a query parameter, escapes decoded; empty if it is absent.
  std::string query_value(std::string_view name) const;
};

/// A reply, or the head of a streamed one.
struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;  ///< besides type, length, date, X-Request-Id and CORS
  std::string body;
};

/// 200 with a body of JSON.
HttpReply json_reply(std::string body);

/// How a stream is kept alive and ended.
struct StreamRules {
  /// Sent when nothing else was for --sse-ping-interval: ": ping\n\n"; empty: nothing.
  std::string keep_alive = ": ping\n\n";
};

/// One request and its reply. Thread-safe; calls after the end and after the client has gone do
/// nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;

  /// X-Request-Id: the client's, if it is printable and at most 256 bytes, else ours.
  virtual const std::string& id() const = 0;

  /// The body was read: it goes, with the memory that it stood for, while the answer is computed.
  /// request().body is empty from here on. Not while somebody looks at it.
  virtual void release_body() = 0;

  /// The whole reply.
  virtual void reply(HttpReply reply) = 0;

  /// The head of a reply whose body comes in pieces; `head.body` is its first piece.
  virtual void begin_stream(HttpReply head, StreamRules rules) = 0;

  /// The next piece of a stream. Never blocks: pieces wait for the client, and when more than the
  /// limit of a stream waits, the client is gone.
  virtual void send(std::string piece) = 0;

  virtual void end_stream() = 0;

  /// Calls once, on the event loop, when the client goes away, or is given up, before the reply has
  /// ended: at once if it has. One listener; a later one replaces it.
  virtual void on_gone(std::function<void()> listener) = 0;

  /// Calls once, on the event loop, when nothing was answered for --sse-ping-interval, unless that
  /// is off: whoever answers with a stream may begin it then, so that proxies see it live. Not
  /// after the reply began. One listener; a later one replaces it.
  virtual void on_silence(std::function<void()> listener) = 0;

  virtual bool gone() const = 0;
};

using ExchangePtr = std::shared_ptr<Exchange>;

/// Gets every request, on the event loop; it must not block.
using HttpHandler = std::function<void(ExchangePtr)>;

/// Runs functions in order on the thread of the event loop. Thread-safe.
using Post = std::function<void(std::function<void()>)>;

}  // namespace fathom::serve
