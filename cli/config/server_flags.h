// Flags of commands that talk to a running server.
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace CLI {
class App;
}

namespace fathom::cli {

/// How a server is reached, besides its address.
struct ServerFlags {
  std::string api_key_file;
  double timeout_s = 600;  ///< of a request
  bool insecure = false;
};

void add_server_flags(CLI::App& app, ServerFlags& flags);

/// The key of --api-key-file, else of FATHOM_API_KEY; empty without either. Errors: those of the
/// file; InvalidArgument for a key that no header can carry.
Result<std::string> api_key_of(const ServerFlags& flags);

/// The error of a command or flag that needs HTTP in a build that does not have it: Unavailable.
Status no_http(std::string_view what);

}  // namespace fathom::cli
