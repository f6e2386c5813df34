// The flags of `serve` that are not options of the engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.h"

namespace fathom::cli {

struct ServeFlags {
  // Where it listens.
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string uds;
  std::string tls_key;
  std::string tls_certificate;
  std::string root_path;
  std::vector<std::string> cors_origins;
  std::vector<std::string> allowed_hosts;

  // Who may use it.
  std::string api_key_file;
  std::string api_key;
  bool insecure_no_auth = false;
  bool admin = false;

  // How the model is shown.
  std::vector<std::string> served_model_names;
  bool allow_any_model = false;
  std::string chat_format;
  std::string tool_call_parser;
  std::string reasoning_parser;
  std::string reasoning_field = "reasoning_content";
  std::string default_thinking = "model";
  std::string tool_grammar = "light";
  std::string tool_schema = "normal";
  bool recipe_defaults = true;
  bool strict_api = false;
  bool accepted = false;  ///< flags of other servers that change nothing here

  std::string chat_template_kwargs;

  // Limits of connections.
  double idle_timeout_s = 120;
  double drain_timeout_s = 30;
  double stall_timeout_s = 0;  ///< 0: 60 on a GPU, 600 on a CPU
  double sse_ping_interval_s = 15;
  int64_t max_body_mb = 32;
  int64_t max_connections = 10'240;
  bool shared_prefix_cache = false;

  // What it tells.
  bool metrics = true;
  bool metrics_no_auth = false;
  std::string metrics_prefix = "fathom";
  std::string kv_events;
  std::string kv_events_replay;
  std::string kv_events_form = "map";
  std::string pod_id;
  std::string trace_requests;
  std::string profile_dir = ".";
};

void add_serve_flags(CLI::App& app, ServeFlags& flags);

/// Errors: InvalidArgument for values that contradict each other or mean nothing here.
Status check_serve_flags(const ServeFlags& flags);

/// The name that --chat-format gives, else --tool-call-parser, else --reasoning-parser; empty where
/// none does. Errors: InvalidArgument for a parser that is not known.
Result<std::string> named_chat_format(const ServeFlags& flags);

}  // namespace fathom::cli
