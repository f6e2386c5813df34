#include "fathom/serve/http/request_rules.h"

#include <algorithm>

#include "fathom/base/ascii.h"
#include "fathom/base/str_cat.h"

namespace fathom::serve {
namespace {

constexpr size_t kMaxRequestIdBytes = 256;
constexpr std::string_view kMethods = "GET, POST, OPTIONS";

// "%41" is "A". Nothing for an escape that is none, and for one of a control character.
std::optional<std::string> decoded_path(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_value(text[i + 1]);
    const int low = hex_value(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    const int byte = high * 16 + low;
    if (byte < 0x20 || byte == 0x7f) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

struct Target {
  std::string_view path;
  std::string_view query;
  std::string_view authority;  // of the absolute form
};

std::optional<Target> split_target(std::string_view target) {
  Target t;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equal_without_case(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    t.authority = target.substr(0, end);
    target.remove_prefix(end);
    if (t.authority.empty()) return std::nullopt;
    if (target.empty()) target = "/";
    break;
  }
  const size_t question = std::min(target.find('?'), target.size());
  t.path = target.substr(0, question);
  t.query = target.substr(std::min(target.size(), question + 1));
  const bool good = t.path == "*" || t.path.starts_with('/');
  return good ? std::optional(t) : std::nullopt;
}

// "localhost" of "localhost:8000"; "[::1]" keeps its brackets.
std::optional<std::string_view> host_name(std::string_view host) {
  const size_t bracket = host.starts_with('[') ? host.find(']') : 0;
  if (bracket == host.npos) return std::nullopt;
  const size_t colon = host.find(':', bracket);
  if (colon == host.npos) return host;
  const std::string_view port = host.substr(colon + 1);
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (port.size() > 5 || !std::ranges::all_of(port, digit)) return std::nullopt;
  return host.substr(0, colon);
}

ApiError refusal(int status, std::string code, std::string message) {
  return {.status = status, .code = std::move(code), .message = std::move(message), .param = {}};
}

std::optional<ApiError> check_host(std::string_view host, const HttpSettings& settings) {
  const auto name = host_name(host);
  if (name && is_loopback_name(*name)) return std::nullopt;
  for (const std::string& allowed : settings.allowed_hosts) {
    if (equal_without_case(host, allowed) || (name && equal_without_case(*name, allowed)))
      return std::nullopt;
  }
  return refusal(403, "host_not_allowed",
                 str_cat("the Host \"", host,
                         "\" is none of this server's names, which are those of the loopback "
                         "(--allowed-host adds more)"));
}

// "application/json", with "charset=utf-8" at most.
bool is_json_type(std::string_view type) {
  const size_t semicolon = std::min(type.find(';'), type.size());
  std::string_view name = type.substr(0, semicolon);
  while (name.ends_with(' ') || name.ends_with('\t'))
    name.remove_suffix(1);
  if (!equal_without_case(name, "application/json")) return false;
  std::string parameters = ascii_lower(type.substr(semicolon));
  std::erase_if(parameters, [](char c) { return c == '"' || c == ' ' || c == '\t'; });
  const size_t charset = parameters.find(";charset=");
  if (charset == std::string::npos) return true;
  const std::string_view value = std::string_view(parameters).substr(charset + 9);
  return value.substr(0, value.find(';')) == "utf-8" || value.substr(0, value.find(';')) == "utf8";
}

std::optional<ApiError> check_body(const RequestHead& head, RequestPlan& plan) {
  for (const auto& [name, value] : head.headers) {
    if (!equal_without_case(name, "Content-Encoding")) continue;
    for (const std::string_view coding : list_items(value)) {
      if (equal_without_case(coding, "identity")) continue;
      const bool gzip = equal_without_case(coding, "gzip") || equal_without_case(coding, "x-gzip");
      if (plan.coding != BodyCoding::kNone || (!gzip && !equal_without_case(coding, "zstd"))) {
        return refusal(415, "unsupported_media_type",
                       str_cat("Content-Encoding \"", value, "\", expected gzip or zstd or none"));
      }
      plan.coding = gzip ? BodyCoding::kGzip : BodyCoding::kZstd;
    }
  }
  if (is_json_type(head.header("Content-Type"))) return std::nullopt;
  return refusal(
      415, "unsupported_media_type",
      str_cat("Content-Type \"", head.header("Content-Type"), "\", expected application/json"));
}

bool printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
}

void plan_cors(const RequestHead& head, const HttpSettings& settings, RequestPlan& plan) {
  if (settings.cors_origins.empty()) return;
  // Replies differ by origin: caches must know.
  plan.cors.emplace_back("Vary", "Origin");
  const std::string_view origin = head.header("Origin");
  if (head.count("Origin") != 1 ||
      std::ranges::find(settings.cors_origins, origin) == settings.cors_origins.end())
    return;
  plan.cors.emplace_back("Access-Control-Allow-Origin", origin);
  plan.cors.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  if (!plan.options || head.header("Access-Control-Request-Method").empty()) return;
  plan.option_reply.emplace_back("Access-Control-Allow-Methods", kMethods);
  const std::string_view asked = head.header("Access-Control-Request-Headers");
  if (!asked.empty()) plan.option_reply.emplace_back("Access-Control-Allow-Headers", asked);
  plan.option_reply.emplace_back("Access-Control-Max-Age", "600");
}

std::optional<ApiError> ask_gate(const HttpGate& gate,
                                 const RequestHead& head,
                                 const RequestPlan& plan) {
  if (!gate || plan.options) return std::nullopt;
  HttpRequest request;
  request.method = head.method;
  request.path = plan.path;
  request.query = plan.query;
  request.headers = head.headers;
  return gate(request);
}

std::optional<ApiError> check_head(const RequestHead& head,
                                   const HttpSettings& settings,
                                   const HeadRules& rules,
                                   const std::optional<Target>& target,
                                   RequestPlan& plan) {
  if (!target) {
    return refusal(400, "bad_request", "the target of the request is no path that begins with '/'");
  }
  const auto path = decoded_path(target->path);
  if (!path) return refusal(400, "bad_request", "the path holds a bad percent-escape");
  plan.path = *path;
  plan.query = target->query;
  const std::string& root = settings.root_path;
  if (!root.empty() && plan.path.starts_with(root) &&
      (plan.path.size() == root.size() || plan.path[root.size()] == '/')) {
    plan.path.erase(0, root.size());
    if (plan.path.empty()) plan.path = "/";
  }
  if (rules.loopback_bind) {
    const std::string_view host =
        target->authority.empty() ? head.header("Host") : target->authority;
    if (auto error = check_host(host, settings)) return error;
  }
  if (head.method != "GET" && head.method != "POST" && head.method != "OPTIONS") {
    return refusal(405, "method_not_allowed",
                   str_cat("the method ", head.method, " is none of ", kMethods));
  }
  if (auto error = ask_gate(rules.gate, head, plan)) return error;
  plan.reads_body = head.method == "POST";
  return head.has_body() && plan.reads_body ? check_body(head, plan) : std::nullopt;
}

}  // namespace

RequestPlan plan_request(const RequestHead& head,
                         const HttpSettings& settings,
                         const HeadRules& rules) {
  RequestPlan plan;
  const std::string_view id = head.header("X-Request-Id");
  if (id.size() <= kMaxRequestIdBytes && printable(id)) plan.request_id = id;
  plan.options = head.method == "OPTIONS";
  const auto target = split_target(head.target);
  plan.error = check_head(head, settings, rules, target, plan);
  if (plan.options) plan.option_reply.emplace_back("Allow", kMethods);
  plan_cors(head, settings, plan);
  return plan;
}

HttpReply refusal_reply(const ApiError& error, std::string_view path, std::string_view request_id) {
  HttpReply reply = error_reply(error, path, request_id);
  if (error.status == 405) reply.headers.emplace_back("Allow", kMethods);
  return reply;
}

}  // namespace fathom::serve
