#include "cli/serve_client/server_facts.h"

#include <algorithm>
#include <cctype>

#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

using serve::ClientReply;
using serve::HttpClient;

// The document of a 200; nothing else.
std::optional<Json> ask(HttpClient& client, serve::ClientCall call) {
  JsonLimits limits;
  limits.max_bytes = int64_t{64} << 20;
  const Result<ClientReply> reply = client.fetch(std::move(call));
  if (!reply.ok() || reply->head.status != 200) return std::nullopt;
  Result<Json> json = parse_json(reply->body, limits, "the reply");
  if (!json.ok()) return std::nullopt;
  return std::move(json).value();
}

Result<ModelFacts> read_model(const Json& entry) {
  ModelFacts facts;
  const Json* id = entry.find("id");
  if (id == nullptr || !id->is_string()) return invalid_argument("a model without an id");
  facts.id = facts.root = id->as_string();
  if (const Json* root = entry.find("root"); root != nullptr && root->is_string()) {
    facts.root = root->as_string();
  }
  const Json* meta = entry.find("meta");
  for (const Json* from : {&entry, meta}) {
    for (const std::string_view name : {"vocab", "vocab_size", "n_vocab"}) {
      const Json* size = from == nullptr ? nullptr : from->find(name);
      const bool usable =
          size != nullptr && size->is_int() && size->as_int() > 0 && size->as_int() <= INT32_MAX;
      if (usable) facts.vocab_size = size->as_int();
    }
  }
  return facts;
}

bool says_simulated(const Json& json) {
  if (json.is_array()) {
    return std::any_of(json.items().begin(), json.items().end(), says_simulated);
  }
  if (!json.is_object()) return false;
  for (const auto& [name, value] : json.members()) {
    const bool off = value.is_null() || value == Json::boolean(false);
    if ((name == "simulated_acceptance" || name == "simulate_acceptance") && !off) return true;
    if (says_simulated(value)) return true;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<HttpClient>> connect_client(const std::string& base_url,
                                                   const ServerFlags& flags) {
  serve::HttpClientOptions options;
  options.base_url = base_url;
  options.total_timeout_s = flags.timeout_s;
  if (flags.insecure) options.certificates = serve::Certificates::kAcceptAny;
  FATHOM_ASSIGN(const std::string key, api_key_of(flags));
  if (!key.empty()) {
    options.headers = {{"Authorization", str_cat("Bearer ", key)}, {"x-api-key", key}};
  }
  options.headers.emplace_back("anthropic-version", "2023-06-01");
  return HttpClient::create(options);
}

Result<ModelFacts> find_model(HttpClient& client, const std::string& name) {
  FATHOM_ASSIGN(const ClientReply reply, client.fetch({.path = "/v1/models"}));
  const bool missing = reply.head.status == 404 && !name.empty();
  if (reply.head.status != 200 && !missing) {
    const serve::SentError sent = serve::read_error_body(reply.body);
    return unavailable(str_cat(client.url().str(), "/v1/models answers ",
                               error_code_of(reply.head.status, sent), ": ", sent.message));
  }
  Json json;
  if (!missing) {
    FATHOM_ASSIGN(json, parse_json(reply.body, {}, "/v1/models"));
  }
  const Json* data = json.find("data");
  const bool listed = data != nullptr && data->is_array() && !data->items().empty();
  if (!listed && name.empty()) {
    return invalid_argument(
        str_cat(client.url().str(), "/v1/models names no model; --model NAME does"));
  }
  if (listed) {
    for (const Json& entry : data->items()) {
      FATHOM_ASSIGN(ModelFacts facts, read_model(entry));
      if (name.empty() || facts.id == name) return facts;
    }
  }
  return ModelFacts{.id = name, .root = name, .vocab_size = 0};
}

std::optional<std::vector<int32_t>> tokenize_there(HttpClient& client,
                                                   const std::string& model,
                                                   const std::string& text) {
  const Json body = Json::object({{"model", Json::string(model)},
                                  {"prompt", Json::string(text)},
                                  {"add_special_tokens", Json::boolean(false)}});
  const auto json = ask(client, {.method = "POST", .path = "/tokenize", .body = dump_json(body)});
  const Json* tokens = json ? json->find("tokens") : nullptr;
  if (tokens == nullptr || !tokens->is_array()) return std::nullopt;
  std::vector<int32_t> ids;
  for (const Json& id : tokens->items()) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > INT32_MAX) return std::nullopt;
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  return ids;
}

std::optional<CountedConversation> count_there(HttpClient& client,
                                               const std::string& model,
                                               std::vector<Json> messages) {
  const Json body = Json::object({{"model", Json::string(model)},
                                  {"messages", Json::array(std::move(messages))},
                                  {"add_generation_prompt", Json::boolean(false)}});
  const auto json = ask(client, {.method = "POST", .path = "/tokenize", .body = dump_json(body)});
  const Json* count = json ? json->find("count") : nullptr;
  if (count == nullptr || !count->is_int()) return std::nullopt;
  CountedConversation out{.tokens = count->as_int()};
  const Json* length = json->find("max_model_len");
  if (length != nullptr && length->is_int()) out.max_model_len = length->as_int();
  return out;
}

std::optional<std::string> detokenize_there(HttpClient& client,
                                            const std::string& model,
                                            const std::vector<int32_t>& ids) {
  JsonWriter body;
  body.begin_object().key("model").string(model).key("tokens").begin_array();
  for (const int32_t id : ids)
    body.integer(id);
  body.end_array().end_object();
  const auto json = ask(client, {.method = "POST", .path = "/detokenize", .body = body.take()});
  const Json* text = json ? json->find("prompt") : nullptr;
  if (text == nullptr || !text->is_string()) return std::nullopt;
  return text->as_string();
}

std::optional<serve::DraftCounters> draft_counters_there(HttpClient& client) {
  const Result<ClientReply> reply = client.fetch({.path = "/metrics"});
  if (!reply.ok() || reply->head.status != 200) return std::nullopt;
  return serve::read_draft_counters(reply->body);
}

bool simulates_acceptance(HttpClient& client) {
  const auto json = ask(client, {.path = "/server_info"});
  return json && says_simulated(*json);
}

std::string error_code_of(int status, const serve::SentError& sent) {
  constexpr size_t kLongest = 64;
  std::string out = str_cat(status);
  if (!sent.code.empty() && sent.code != out) str_append(out, str_cat(" ", sent.code));
  for (char& c : out) {  // it becomes a cell and a key
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-')
      c = c == ' ' ? ' ' : '_';
  }
  return out.substr(0, kLongest);
}

}  // namespace fathom::cli
