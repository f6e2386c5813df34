// A conversation with a model that a server has loaded.
#pragma once

#include <string>

#include "cli/command.h"
#include "cli/config/server_flags.h"
#include "cli/engine/text_engine.h"
#include "cli/io/chat_input.h"

namespace fathom::cli {

struct RemoteChatFlags {
  std::string url;
  std::string model;  ///< empty: the first that the server names
  std::string system;
  ServerFlags server;
  SamplingFlags sampling;
  ChatFlags prompt;
};

/// Errors: those of the connection; InvalidArgument for sampling that no request can carry.
Result<int> chat_with_server(const RemoteChatFlags& flags, const GlobalFlags& globals);

}  // namespace fathom::cli
