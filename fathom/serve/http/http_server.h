// The HTTP/1.1 server: reads requests as strictly as reliability.md 2.2 asks, asks a gate who may
// enter, gives the others to one handler, and writes what the handler answers through the Exchange.
// One thread runs it all.
//
//   auto server = HttpServer::start(
//       settings, [&](ExchangePtr x) { routes.handle(std::move(x)); },
//       [&](const HttpRequest& head) { return routes.refuse_head(head); });
//   ... server->stop_accepting(); server->wait_idle(30'000); server.reset();
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fathom/base/status.h"
#include "fathom/serve/exchange.h"
#include "fathom/serve/http/http_settings.h"
#include "fathom/serve/http/request_rules.h"

namespace fathom::serve {

/// Figures of metrics; totals since the start.
struct HttpCounts {
  int64_t connections = 0;     ///< open now
  int64_t busy = 0;            ///< of them: with a request, or with output that waits
  int64_t input_bytes = 0;     ///< held for requests now
  int64_t accepted_total = 0;  ///< connections
  int64_t rejected_total = 0;  ///< connections above the limit
  int64_t requests_total = 0;  ///< read, refused ones too
  int64_t refused_total = 0;   ///< answered here with an error
  int64_t gone_total = 0;      ///< requests whose client went away, given up ones too
  int64_t given_up_total = 0;  ///< clients that did not read
};

class HttpServer {
 public:
  /// Listens and runs. The gate sees each request when its head is whole, the handler when its body
  /// is; without a gate everybody is let in. Errors: InvalidArgument (check_settings, a host or TLS
  /// file that is none), Io (an address in use), Unavailable (no thread).
  static Result<std::unique_ptr<HttpServer>> start(HttpSettings settings,
                                                   HttpHandler handler,
                                                   HttpGate gate = {},
                                                   RefusalObserver on_refused = {});

  /// Closes all connections: their requests' clients are gone. Removes the file of a Unix socket.
  virtual ~HttpServer() = default;

  /// "http://127.0.0.1:8000", "https://[::1]:8000", "unix:/run/fathom.sock".
  virtual const std::string& address() const = 0;

  /// Runs functions on the server's thread; they are dropped once the server has ended.
  virtual Post post() = 0;

  /// Begins to drain: new connections are refused by the system, and each connection ends after
  /// its next reply. Handlers still get requests of connections that are open. Thread-safe.
  virtual void stop_accepting() = 0;

  /// Waits until no request is open and all output is with the system. False if the time is over
  /// first.
  virtual bool wait_idle(int64_t timeout_ms) = 0;

  virtual HttpCounts counts() const = 0;
};

}  // namespace fathom::serve
