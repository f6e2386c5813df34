// What the HTTP interface is, for programs: its routes, and an OpenAPI 3.1 document about them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fathom::serve {

/// Who may call a route.
enum class RouteAccess {
  kOpen,     ///< without a key
  kKeyed,    ///< with a key, where keys are set
  kMetrics,  ///< as kKeyed, unless --metrics-no-auth
  kAdmin,    ///< only with --admin, and always with a key
};

/// A route as the document describes it. Paths have no parameters but `{id}` at their end.
struct ApiRoute {
  std::string_view method;   ///< "POST"
  std::string_view path;     ///< "/v1/models/{id}"
  std::string_view summary;  ///< one line
  std::string_view request;  ///< name of the schema of its body; empty: it has none
  std::string_view reply;    ///< media type of a reply of 200
  RouteAccess access = RouteAccess::kKeyed;
  bool streams = false;  ///< text/event-stream with "stream": true
};

/// Every route of the server: routers and their tests compare with it.
std::span<const ApiRoute> api_routes();

/// The document, compact. Limits of fields are those that the code enforces.
std::string openapi_document(std::string_view version);

}  // namespace fathom::serve
