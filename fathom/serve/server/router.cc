#include "fathom/serve/server/router.h"

namespace fathom::serve {
namespace {

// The fixed part of "/v1/models/{id}"; the whole path where nothing is in braces.
std::string_view fixed_part(std::string_view pattern) {
  return pattern.substr(0, pattern.find('{'));
}

bool matches(std::string_view pattern, std::string_view path) {
  const std::string_view fixed = fixed_part(pattern);
  if (fixed.size() == pattern.size()) return path == pattern;
  return path.size() > fixed.size() && path.starts_with(fixed);
}

}  // namespace

std::string_view path_parameter(std::string_view pattern, std::string_view path) {
  return path.substr(fixed_part(pattern).size());
}

void Router::add(Route route) {
  for (const ApiRoute& described : api_routes()) {
    if (described.method != route.method || described.path != route.path) continue;
    route.access = described.access;
    routes_.push_back(std::move(route));
    return;
  }
  FATHOM_CHECK(false, str_cat("no description of ", route.method, " ", route.path));
}

Router::Found Router::find(std::string_view method, std::string_view path) const {
  Found out;
  for (const Route& route : routes_) {
    if (!matches(route.path, path)) continue;
    if (route.method == method || (method == "HEAD" && route.method == "GET")) {
      out.route = &route;
      return out;
    }
    out.allow += (out.allow.empty() ? "" : ", ") + std::string(route.method);
  }
  const std::string shown(path.substr(0, 128));
  if (out.allow.empty()) {
    out.error = ApiError{
        .status = 404,
        .code = "route_not_found",
        .message = str_cat("there is no route ", shown, "; /openapi.json lists those there are"),
        .param = {}};
  } else {
    out.error = ApiError{.status = 405,
                         .code = "method_not_allowed",
                         .message = str_cat(shown, ": found method ", method.substr(0, 16),
                                            ", expected ", out.allow),
                         .param = {}};
  }
  return out;
}

}  // namespace fathom::serve
