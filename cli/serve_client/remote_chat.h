// A conversation with a model that a server has loaded.
#pragma once

#include <string>

#include "cli/chat/chat_session.h"
#include "cli/config/server_flags.h"

namespace fathom::cli {

struct RemoteChatFlags {
  std::string url;
  std::string model;  ///< empty: the first that the server names
  ServerFlags server;
  ChatStart start;
};

/// Errors: those of the connection; InvalidArgument for sampling that no request can carry.
Result<int> chat_with_server(RemoteChatFlags flags);

}  // namespace fathom::cli
