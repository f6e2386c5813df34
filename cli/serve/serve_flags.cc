#include "cli/serve/serve_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>

#include "cli/config/lists.h"
#include "cli/flags.h"
#include "cli/integers.h"
#include "cli/io/chat_input.h"
#include "fathom/base/ascii.h"
#include "fathom/base/near_names.h"
#include "fathom/os/file.h"

namespace fathom::cli {
namespace {

constexpr double kDay = 86'400;

void add_listening(CLI::App& app, ServeFlags& f) {
  const char* const group = "Listening";
  app.add_option("--host", f.host, "Address to listen on; others than loopback need a key")
      ->capture_default_str()
      ->group(group);
  app.add_option("--port", f.port, "0: pick one and print it")
      ->check(integer_range(int64_t{0}, int64_t{65'535}).description(""))
      ->capture_default_str()
      ->group(group);
  app.add_option("--uds", f.uds, "A Unix socket in place of host and port")->group(group);
  app.add_option("--ssl-keyfile,--ssl-key-file", f.tls_key, "Private key (PEM), for TLS")
      ->group(group);
  app.add_option("--ssl-certfile,--ssl-cert-file", f.tls_certificate, "Certificate chain (PEM)")
      ->group(group);
  app.add_option("--root-path", f.root_path, "Prefix of all paths, behind a proxy: /llm")
      ->group(group);
  app.add_option("--cors-origin,--cors-origins,--allowed-origins", f.cors_origins,
                 "Origin whose pages may ask, exactly: https://app.example (repeat)")
      ->group(group);
  app.add_option("--allowed-host", f.allowed_hosts,
                 "Name that the Host header may have on a loopback address (repeat)")
      ->group(group);
  app.add_option("--max-connections", f.max_connections, "More are closed")
      ->check(integer_range(int64_t{1}, int64_t{65'536}).description(""))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-body-mb", f.max_body_mb, "MiB of a request body, unpacked")
      ->check(integer_range(int64_t{1}, int64_t{256}).description(""))
      ->capture_default_str()
      ->group(group);
  app.add_option("--idle-timeout", f.idle_timeout_s, "Seconds a connection may be idle")
      ->check(finite_range(0.1, kDay).description(""))
      ->capture_default_str()
      ->group(group);
  app.add_option("--sse-ping-interval", f.sse_ping_interval_s,
                 "Seconds between comments that keep a silent stream alive; 0: none")
      ->check(finite_range(0, kDay).description(""))
      ->capture_default_str()
      ->group(group);
}

void add_access(CLI::App& app, ServeFlags& f) {
  const char* const group = "Access";
  app.add_option("--api-key-file", f.api_key_file, "Keys, one a line, # begins a comment")
      ->group(group);
  app.add_option("--api-key", f.api_key,
                 "A key; it shows in the list of processes: prefer FATHOM_API_KEY or a file")
      ->group(group);
  app.add_flag("--insecure-no-auth", f.insecure_no_auth,
               "Listen on any address without a key, for anybody")
      ->group(group);
  app.add_flag("--admin", f.admin, "Allow the admin routes, which need a key")->group(group);
}

void add_answers(CLI::App& app, ServeFlags& f) {
  const char* const group = "Answers";
  add_list(app, "--served-model-name,--alias,-a", f.served_model_names,
           "Names of the model, A,B; the first is shown (default: the directory's)")
      ->group(group);
  app.add_flag("--allow-any-model", f.allow_any_model, "Requests may name any model")->group(group);
  app.add_option("--chat-format", f.chat_format, "Prompt format (default: the checkpoint's)")
      ->group(group);
  app.add_option(
         "--tool-call-parser", f.tool_call_parser,
         "As other servers name it: deepseek_v3, deepseek_v31, deepseekv32, ... (default: auto)")
      ->group(group);
  app.add_option("--reasoning-parser", f.reasoning_parser, "The same of reasoning (default: auto)")
      ->group(group);
  app.add_option("--reasoning-field", f.reasoning_field,
                 "Where reasoning stands in chat completions")
      ->check(one_of({"reasoning_content", "reasoning", "both"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--default-thinking", f.default_thinking, "For requests that do not say")
      ->check(one_of({"model", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--chat-template-kwargs", f.chat_template_kwargs,
                 "Defaults of requests, JSON: {\"thinking\": true, \"reasoning_effort\": \"high\"}")
      ->group(group);
  app.add_option("--tool-grammar", f.tool_grammar,
                 "How much of a tool call is prescribed: its frame and names, or arguments too")
      ->check(one_of({"off", "light", "full"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--tool-schema", f.tool_schema, "Schemas in prompts of V3.2 and V4")
      ->check(one_of({"normal", "raw"}))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--recipe-defaults,!--no-recipe-defaults", f.recipe_defaults,
               "V4: effort, top_p and max_tokens of the official recipe where a request is silent")
      ->default_str("true")
      ->group(group);
  app.add_flag("--strict-api", f.strict_api, "Refuse fields that are not known")->group(group);
  app.add_flag("--enable-auto-tool-choice", f.accepted, "Always on; accepted")->group(group);
  app.add_flag("--trust-remote-code", f.accepted, "Accepted; nothing of a checkpoint is ever run")
      ->group(group);
}

void add_operation(CLI::App& app, ServeFlags& f) {
  const char* const group = "Operation";
  app.add_option("--drain-timeout,--shutdown-timeout", f.drain_timeout_s,
                 "Seconds that running requests have to end after SIGTERM")
      ->check(finite_range(0, kDay).description(""))
      ->capture_default_str()
      ->group(group);
  app.add_option("--stall-timeout", f.stall_timeout_s,
                 "Seconds of a step after which the server counts as stalled and ends with 70 "
                 "(default: 60 on a GPU, 600 on a CPU)")
      ->check(finite_range(0, kDay).description(""))
      ->group(group);
  app.add_flag("--shared-prefix-cache", f.shared_prefix_cache,
               "Requests of different keys share cached prefixes")
      ->group(group);
  app.add_flag("--metrics,--enable-metrics,!--no-metrics", f.metrics, "GET /metrics")
      ->default_str("true")
      ->group(group);
  app.add_flag("--metrics-no-auth", f.metrics_no_auth, "/metrics answers without a key")
      ->group(group);
  app.add_option("--metrics-prefix", f.metrics_prefix, "vllm makes its dashboards work")
      ->capture_default_str()
      ->group(group);
  app.add_option("--kv-events", f.kv_events,
                 "Publish what the prefix cache holds by ZeroMQ: tcp://*:5556, or "
                 "connect:tcp://host:5557")
      ->group(group);
  app.add_option("--kv-events-replay", f.kv_events_replay, "Socket that repeats them: tcp://*:5558")
      ->group(group);
  app.add_option("--kv-events-form", f.kv_events_form, "Events as maps, or as the older arrays")
      ->check(one_of({"map", "array"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--pod-id", f.pod_id, "Name in their topic (default: POD_IP, POD_NAME)")
      ->group(group);
  app.add_option("--trace-requests", f.trace_requests,
                 "Append prompts, answers and cache decisions to a file, a line of JSON a request; "
                 "it holds what users write")
      ->group(group);
  app.add_option("--profile-dir", f.profile_dir, "Where /start_profile writes its traces")
      ->capture_default_str()
      ->group(group);
}

// The chat format of a parser, which other servers call "deepseek_v3", "deepseekv32",
// "deepseek-v4", ...; empty for auto.
Result<std::string> chat_format_of_parser(const std::string& flag, const std::string& name) {
  if (name.empty() || name == "auto") return std::string{};
  // "deepseek_v3", "deepseek-v3", "deepseekv3" and "v3" are one.
  std::string plain;
  for (char c : name) {
    if (c != '_' && c != '-' && c != '.') plain += ascii_lower(c);
  }
  if (plain.starts_with("deepseek")) plain.erase(0, 8);
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"v2", "v2"},    {"v25", "v2.5"}, {"v3", "v3"}, {"r1", "r1"},
      {"v31", "v3.1"}, {"v32", "v3.2"}, {"v4", "v4"}, {"v40731", "v4-0731"},
  };
  for (const auto& [known, format] : kNames) {
    if (plain == known) return std::string(format);
  }
  return invalid_argument(str_cat(flag, " is '", name,
                                  "', expected auto, deepseek_v2, deepseek_v25, deepseek_v3, "
                                  "deepseek_r1, deepseek_v31, deepseek_v32 or deepseek_v4"));
}

}  // namespace

void add_serve_flags(CLI::App& app, ServeFlags& flags) {
  add_listening(app, flags);
  add_access(app, flags);
  add_answers(app, flags);
  add_operation(app, flags);
}

Status check_serve_flags(const ServeFlags& f) {
  if (f.tls_key.empty() != f.tls_certificate.empty()) {
    return invalid_argument(str_cat(f.tls_key.empty() ? "--ssl-keyfile" : "--ssl-certfile",
                                    " is missing: TLS needs a key and a certificate"));
  }
  for (const std::string& path : {f.tls_key, f.tls_certificate}) {
    if (path.empty() || path_kind(path) != PathKind::kMissing) continue;
    return errno_status("open", path, ENOENT);
  }
  if (!f.kv_events_replay.empty() && f.kv_events.empty()) {
    return invalid_argument("--kv-events-replay repeats what --kv-events sends: give that too");
  }
  if (!f.root_path.empty() && (f.root_path.front() != '/' || f.root_path.back() == '/')) {
    return invalid_argument(
        str_cat("--root-path is '", f.root_path, "', expected /name without a slash at its end"));
  }
  const auto is_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (f.metrics_prefix.empty() || !std::ranges::all_of(f.metrics_prefix, is_name) ||
      (f.metrics_prefix.front() >= '0' && f.metrics_prefix.front() <= '9')) {
    return invalid_argument(
        str_cat("--metrics-prefix is '", f.metrics_prefix, "', expected letters, digits and _"));
  }
  for (const std::string& name : f.served_model_names) {
    if (name.empty() || name.size() > 256) {
      return invalid_argument("--served-model-name: a name is empty or longer than 256 bytes");
    }
  }
  FATHOM_ASSIGN(const std::string format, named_chat_format(f));
  return check_chat_format(format);
}

Result<std::string> named_chat_format(const ServeFlags& f) {
  if (!f.chat_format.empty()) return f.chat_format;
  FATHOM_ASSIGN(std::string name, chat_format_of_parser("--tool-call-parser", f.tool_call_parser));
  if (!name.empty()) return name;
  return chat_format_of_parser("--reasoning-parser", f.reasoning_parser);
}

}  // namespace fathom::cli
