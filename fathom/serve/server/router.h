// Which route a request goes to, and who may use it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/api_error.h"
#include "fathom/serve/exchange.h"
#include "fathom/serve/openai/openapi.h"

namespace fathom::serve {

/// Who asks.
struct Caller {
  std::string key;  ///< digest of the API key in hex; empty without keys
};

using RouteHandler = std::function<void(const ExchangePtr&, const Caller&)>;

/// A route of api_routes() (openai/openapi.h), which says what it does and who may use it, with
/// what answers it.
struct Route {
  enum class Needs : uint8_t {
    kNothing,
    kModel,  ///< 503 loading until it is there
    kReady,  ///< and 503 draining when the server shuts down
  };

  enum class Thread : uint8_t {
    kLoop,    ///< quick: on the event loop
    kWorker,  ///< parses, encodes or waits
  };

  std::string_view method;
  std::string_view path;  ///< "/v1/models/{id}": a last segment in braces is any
  Needs needs = Needs::kReady;
  Thread thread = Thread::kWorker;
  RouteHandler handler;
  RouteAccess access = RouteAccess::kKeyed;  ///< set by Router::add
};

class Router {
 public:
  /// The route must be one of api_routes().
  void add(Route route);

  const std::vector<Route>& routes() const { return routes_; }

  /// The route of a request, HEAD counting as GET. Errors: 404 route_not_found; 405
  /// method_not_allowed, naming the methods there are.
  struct Found {
    const Route* route = nullptr;
    std::optional<ApiError> error;
    std::string allow;  ///< with 405: the header Allow
  };

  Found find(std::string_view method, std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

/// What "{id}" of the pattern is in the path of a request.
std::string_view path_parameter(std::string_view pattern, std::string_view path);

}  // namespace fathom::serve
