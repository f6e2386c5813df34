#include "fathom/serve/openai/openapi.h"

#include <array>

#include "fathom/serve/openai/openapi_fields.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kText = "text/plain";

constexpr std::array kRoutes = {
    ApiRoute{"POST", "/v1/chat/completions", "Answers a conversation", "ChatRequest", kJson,
             RouteAccess::kKeyed, true},
    ApiRoute{"POST", "/v1/chat/completions/render", "The token ids of a conversation",
             "ChatRequest", kJson},
    ApiRoute{"POST", "/v1/chat/completions/input_tokens", "Counts the tokens of a conversation",
             "ChatRequest", kJson},
    ApiRoute{"POST", "/v1/completions", "Continues texts", "CompletionRequest", kJson,
             RouteAccess::kKeyed, true},
    ApiRoute{"POST", "/v1/completions/render", "The token ids of prompts", "CompletionRequest",
             kJson},
    ApiRoute{"POST", "/v1/messages", "Answers a conversation (Anthropic)", "MessagesRequest", kJson,
             RouteAccess::kKeyed, true},
    ApiRoute{"POST", "/v1/messages/count_tokens", "Counts the tokens of a conversation (Anthropic)",
             "MessagesRequest", kJson},
    ApiRoute{"POST", "/v1/responses", "Answers a conversation (Responses)", "ResponsesRequest",
             kJson, RouteAccess::kKeyed, true},
    ApiRoute{"POST", "/v1/responses/input_tokens",
             "Counts the tokens of a conversation (Responses)", "ResponsesRequest", kJson},
    ApiRoute{"POST", "/v1/embeddings", "Not supported: always 400", "AnyRequest", kJson},
    ApiRoute{"GET", "/v1/models", "Lists the models", "", kJson},
    ApiRoute{"GET", "/v1/models/{id}", "Shows a model", "", kJson},
    ApiRoute{"POST", "/tokenize", "Text or a conversation to token ids", "TokenizeRequest", kJson},
    ApiRoute{"POST", "/detokenize", "Token ids to text", "DetokenizeRequest", kJson},
    ApiRoute{"GET", "/health", "200 while ready and moving", "", kJson, RouteAccess::kOpen},
    ApiRoute{"GET", "/health/live", "200 while the process answers", "", kJson, RouteAccess::kOpen},
    ApiRoute{"GET", "/health/ready", "200 while requests are taken", "", kJson, RouteAccess::kOpen},
    ApiRoute{"GET", "/live", "As /health/live", "", kJson, RouteAccess::kOpen},
    ApiRoute{"GET", "/ready", "As /health/ready", "", kJson, RouteAccess::kOpen},
    ApiRoute{"GET", "/ping", "As /health", "", kJson, RouteAccess::kOpen},
    ApiRoute{"GET", "/health_generate", "Generates one token", "", kJson},
    ApiRoute{"GET", "/version", "The version of the program", "", kJson},
    ApiRoute{"GET", "/load", "How many requests run and wait", "", kJson},
    ApiRoute{"GET", "/metrics", "Figures for Prometheus", "", kText, RouteAccess::kMetrics},
    ApiRoute{"GET", "/server_info", "The configuration and its plans", "", kJson},
    ApiRoute{"GET", "/server_info/step", "Measures the ops of one step", "", kJson},
    ApiRoute{"GET", "/get_server_info", "As /server_info", "", kJson},
    ApiRoute{"GET", "/get_model_info", "The model in short", "", kJson},
    ApiRoute{"GET", "/openapi.json", "This description", "", kJson},
    ApiRoute{"GET", "/", "A page to chat and to watch", "", "text/html", RouteAccess::kOpen},
    ApiRoute{"POST", "/start_profile", "Begins to record a trace", "ProfileRequest", kJson,
             RouteAccess::kAdmin},
    ApiRoute{"POST", "/stop_profile", "Ends a recording", "AnyRequest", kJson, RouteAccess::kAdmin},
    ApiRoute{"POST", "/reset_prefix_cache", "Forgets all prefixes", "AnyRequest", kJson,
             RouteAccess::kAdmin},
    ApiRoute{"POST", "/flush_cache", "As /reset_prefix_cache", "AnyRequest", kJson,
             RouteAccess::kAdmin},
    ApiRoute{"POST", "/abort_request", "Ends a request", "AbortRequest", kJson,
             RouteAccess::kAdmin},
    ApiRoute{"POST", "/log_level", "Changes what is logged", "LogLevelRequest", kJson,
             RouteAccess::kAdmin},
};

// A size where there is one, the range of numbers, and a word about it.
void write_bounds(JsonWriter& w, const ApiField& field) {
  const bool is_text = field.kind == ApiField::Kind::kText;
  if (field.max_size > 0) w.key(is_text ? "maxLength" : "maxItems").integer(field.max_size);
  if (field.low) w.key(field.above_low ? "exclusiveMinimum" : "minimum").number(*field.low);
  if (field.high) w.key("maximum").number(*field.high);
}

void write_field(JsonWriter& w, const ApiField& field) {
  using Kind = ApiField::Kind;
  w.key(field.name).begin_object();
  switch (field.kind) {
    case Kind::kBool:
      w.key("type").string("boolean");
      break;
    case Kind::kInteger:
      w.key("type").string("integer");
      break;
    case Kind::kNumber:
      w.key("type").string("number");
      break;
    case Kind::kText:
      w.key("type").string("string");
      break;
    case Kind::kArray:
      w.key("type").string("array");
      break;
    case Kind::kObject:
      w.key("type").string("object");
      break;
    case Kind::kTexts:
      w.key("type").begin_array().string("string").string("array").end_array();
      break;
    case Kind::kAny:
      break;
  }
  write_bounds(w, field);
  if (!field.about.empty()) w.key("description").string(field.about);
  w.end_object();
}

void write_schema(JsonWriter& w, const ApiSchema& schema) {
  w.key(schema.name).begin_object().key("type").string("object");
  w.key("properties").begin_object();
  for (const ApiField& field : schema.fields)
    write_field(w, field);
  w.end_object();
  bool any = false;
  for (const ApiField& field : schema.fields)
    any = any || field.required;
  if (any) {
    w.key("required").begin_array();
    for (const ApiField& field : schema.fields) {
      if (field.required) w.string(field.name);
    }
    w.end_array();
  }
  w.end_object();
}

// {"$ref":"#/components/schemas/NAME"}
void write_reference(JsonWriter& w, std::string_view name) {
  w.begin_object().key("$ref").string(str_cat("#/components/schemas/", name)).end_object();
}

void write_media(JsonWriter& w, std::string_view type, std::string_view schema) {
  w.key(type).begin_object().key("schema");
  schema.empty() ? w.begin_object().end_object() : (write_reference(w, schema), w);
  w.end_object();
}

void write_answers(JsonWriter& w, const ApiRoute& route) {
  const bool is_anthropic = route.path.starts_with("/v1/messages");
  w.key("responses").begin_object();
  w.key("200").begin_object().key("description").string(route.summary);
  w.key("content").begin_object();
  write_media(w, route.reply, {});
  if (route.streams) write_media(w, "text/event-stream", {});
  w.end_object().end_object();
  w.key("default").begin_object().key("description").string("An error, by its status");
  w.key("content").begin_object();
  write_media(w, kJson, is_anthropic ? "AnthropicError" : "Error");
  w.end_object().end_object().end_object();
}

void write_operation(JsonWriter& w, const ApiRoute& route) {
  w.key(route.method == "GET" ? "get" : "post").begin_object();
  w.key("summary").string(route.summary);
  if (route.access == RouteAccess::kOpen) w.key("security").begin_array().end_array();
  if (route.access == RouteAccess::kAdmin) {
    w.key("tags").begin_array().string("admin").end_array();
  }
  if (route.path.ends_with("/{id}")) {
    w.key("parameters").begin_array().begin_object().key("name").string("id");
    w.key("in").string("path").key("required").boolean(true).key("schema");
    w.begin_object().key("type").string("string").end_object().end_object().end_array();
  }
  if (!route.request.empty()) {
    w.key("requestBody").begin_object();
    w.key("required").boolean(route.request != "AnyRequest").key("content").begin_object();
    write_media(w, kJson, route.request);
    w.end_object().end_object();
  }
  write_answers(w, route);
  w.end_object();
}

void write_security(JsonWriter& w) {
  w.key("securitySchemes").begin_object();
  w.key("bearer").begin_object().key("type").string("http").key("scheme").string("bearer");
  w.end_object().key("key").begin_object().key("type").string("apiKey").key("in");
  w.string("header").key("name").string("x-api-key").end_object().end_object();
}

}  // namespace

std::span<const ApiRoute> api_routes() {
  return kRoutes;
}

std::string openapi_document(std::string_view version) {
  JsonWriter w;
  w.begin_object().key("openapi").string("3.1.0").key("info").begin_object();
  w.key("title").string("fathom").key("version").string(version).end_object();
  w.key("security").begin_array();
  for (const std::string_view scheme : {"bearer", "key"})
    w.begin_object().key(scheme).begin_array().end_array().end_object();
  w.end_array().key("paths").begin_object();
  for (const ApiRoute& route : kRoutes) {
    w.key(route.path).begin_object();
    write_operation(w, route);
    w.end_object();
  }
  w.end_object().key("components").begin_object();
  write_security(w);
  w.key("schemas").begin_object();
  for (const ApiSchema& schema : api_schemas())
    write_schema(w, schema);
  w.end_object().end_object().end_object();
  return w.take();
}

}  // namespace fathom::serve
