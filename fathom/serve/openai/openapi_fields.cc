#include "fathom/serve/openai/openapi_fields.h"

#include <array>
#include <vector>

#include "fathom/runtime/sample/params.h"
#include "fathom/serve/prompt/chat_prompt.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::serve {
namespace {

using Kind = ApiField::Kind;

ApiField field(std::string_view name, Kind kind, std::string_view about = {}) {
  return {.name = name, .kind = kind, .about = about};
}

ApiField range(std::string_view name, Kind kind, double low, double high) {
  return {.name = name, .kind = kind, .low = low, .high = high};
}

ApiField above(std::string_view name, double low, double high) {
  return {.name = name, .kind = Kind::kNumber, .low = low, .high = high, .above_low = true};
}

ApiField least(std::string_view name, double low, std::string_view about = {}) {
  return {.name = name, .kind = Kind::kInteger, .about = about, .low = low};
}

ApiField sized(std::string_view name, Kind kind, int64_t size, std::string_view about = {}) {
  return {.name = name, .kind = kind, .about = about, .max_size = size};
}

ApiField required(ApiField of) {
  of.required = true;
  return of;
}

using FieldList = std::vector<ApiField>;

FieldList joined(std::initializer_list<FieldList> lists) {
  FieldList all;
  for (const FieldList& list : lists)
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Of chat completions and completions.
FieldList sampling_fields() {
  return {
      range("temperature", Kind::kNumber, 0, 2),
      above("top_p", 0, 1),
      range("min_p", Kind::kNumber, 0, 1),
      least("top_k", -1, "-1 and 0: off; at most the vocabulary"),
      range("presence_penalty", Kind::kNumber, -2, 2),
      range("frequency_penalty", Kind::kNumber, -2, 2),
      above("repetition_penalty", 0, 10),
      field("seed", Kind::kInteger),
      field("logit_bias", Kind::kObject, "token id to a number from -100 to 100"),
      least("max_tokens", 1, "absent: what the context leaves, at most 32768"),
      least("min_tokens", 0),
      sized("stop", Kind::kTexts, kMaxStopStrings),
      sized("stop_token_ids", Kind::kArray, kMaxStopIds),
      field("ignore_eos", Kind::kBool),
      range("n", Kind::kInteger, 1, static_cast<double>(kMaxChoices)),
      range("best_of", Kind::kInteger, 1, static_cast<double>(kMaxChoices)),
      range("prompt_logprobs", Kind::kInteger, 0, kMaxTopLogprobs),
      field("stream", Kind::kBool),
      field("stream_options", Kind::kObject, "include_usage, continuous_usage_stats"),
      field("timings", Kind::kBool),
      field("echo", Kind::kBool),
      field("response_format", Kind::kObject, "text, json_object, json_schema, structural_tag"),
      field("structured_outputs", Kind::kObject,
            "one of json, regex, choice, grammar, structural_tag"),
      field("guided_json", Kind::kAny),
      field("guided_regex", Kind::kText),
      field("guided_choice", Kind::kArray),
      field("guided_grammar", Kind::kText),
      sized("cache_salt", Kind::kText, kMaxIdBytes),
      sized("prompt_cache_key", Kind::kText, kMaxIdBytes),
      sized("user", Kind::kText, kMaxIdBytes),
      field("metadata", Kind::kObject),
  };
}

FieldList chat_fields() {
  return joined(
      {{sized("model", Kind::kText, kMaxIdBytes),
        required(sized("messages", Kind::kArray, static_cast<int64_t>(kMaxChatMessages))),
        sized("tools", Kind::kArray, static_cast<int64_t>(kMaxChatTools)),
        field("tool_choice", Kind::kAny, "none, auto, required or a function"),
        field("parallel_tool_calls", Kind::kBool),
        field("thinking", Kind::kObject, "type: enabled, disabled or adaptive"),
        field("reasoning_effort", Kind::kText, "none, minimal, low, medium, high, xhigh or max"),
        field("chat_template_kwargs", Kind::kObject,
              "thinking, enable_thinking, reasoning_effort, drop_thinking"),
        field("add_generation_prompt", Kind::kBool), field("continue_final_message", Kind::kBool),
        least("max_completion_tokens", 1, "wins over max_tokens"), field("logprobs", Kind::kBool),
        range("top_logprobs", Kind::kInteger, 0, kMaxTopLogprobs)},
       sampling_fields()});
}

FieldList completion_fields() {
  return joined({{sized("model", Kind::kText, kMaxIdBytes),
                  required(field("prompt", Kind::kAny,
                                 "a string, strings, token ids or lists of them; at most 64")),
                  field("suffix", Kind::kText, "the text behind the gap to fill"),
                  field("add_special_tokens", Kind::kBool),
                  range("logprobs", Kind::kInteger, 0, kMaxTopLogprobs)},
                 sampling_fields()});
}

FieldList messages_fields() {
  return {field("model", Kind::kText),
          required(field("messages", Kind::kArray)),
          field("system", Kind::kAny, "a string or text blocks"),
          least("max_tokens", 1),
          field("temperature", Kind::kNumber),
          field("top_p", Kind::kNumber),
          field("top_k", Kind::kInteger),
          field("stop_sequences", Kind::kArray),
          field("stream", Kind::kBool),
          field("tools", Kind::kArray),
          field("tool_choice", Kind::kObject),
          field("thinking", Kind::kObject, "type: enabled, disabled or adaptive; budget_tokens"),
          field("output_config", Kind::kObject, "effort, format"),
          field("metadata", Kind::kObject)};
}

FieldList responses_fields() {
  return {field("model", Kind::kText),
          field("input", Kind::kAny, "a string or items"),
          field("instructions", Kind::kText),
          field("tools", Kind::kArray),
          field("tool_choice", Kind::kAny),
          field("parallel_tool_calls", Kind::kBool),
          least("max_output_tokens", 1),
          field("temperature", Kind::kNumber),
          field("top_p", Kind::kNumber),
          field("reasoning", Kind::kObject, "effort"),
          field("text", Kind::kObject, "format"),
          field("stream", Kind::kBool),
          field("include", Kind::kArray),
          field("prompt_cache_key", Kind::kText),
          field("store", Kind::kBool, "ignored: nothing is stored"),
          field("truncation", Kind::kText),
          field("service_tier", Kind::kText),
          field("user", Kind::kText),
          field("client_metadata", Kind::kObject),
          field("metadata", Kind::kObject)};
}

FieldList tokenize_fields() {
  return {field("model", Kind::kText), field("prompt", Kind::kText),
          field("messages", Kind::kArray, "in place of prompt, with the fields of ChatRequest"),
          field("add_special_tokens", Kind::kBool), field("return_token_strs", Kind::kBool)};
}

}  // namespace

std::span<const ApiSchema> api_schemas() {
  static const FieldList chat = chat_fields();
  static const FieldList completion = completion_fields();
  static const FieldList messages = messages_fields();
  static const FieldList responses = responses_fields();
  static const FieldList tokenize = tokenize_fields();
  static const FieldList detokenize = {field("model", Kind::kText),
                                       required(field("tokens", Kind::kArray))};
  static const FieldList profile = {field("steps", Kind::kInteger), field("output", Kind::kText),
                                    field("kernels", Kind::kBool)};
  static const FieldList abort = {required(field("request_id", Kind::kText))};
  static const FieldList log_level = {
      required(field("level", Kind::kText, "error, warn, info, debug or trace"))};
  static const FieldList error = {
      required(field("error", Kind::kObject, "message, type, param, code"))};
  static const FieldList anthropic_error = {
      required(field("type", Kind::kText, "error")),
      required(field("error", Kind::kObject, "type, message")), field("request_id", Kind::kText)};
  static const std::array<ApiSchema, 12> schemas = {{{"ChatRequest", chat},
                                                     {"CompletionRequest", completion},
                                                     {"MessagesRequest", messages},
                                                     {"ResponsesRequest", responses},
                                                     {"TokenizeRequest", tokenize},
                                                     {"DetokenizeRequest", detokenize},
                                                     {"ProfileRequest", profile},
                                                     {"AbortRequest", abort},
                                                     {"LogLevelRequest", log_level},
                                                     {"AnyRequest", {}},
                                                     {"Error", error},
                                                     {"AnthropicError", anthropic_error}}};
  return schemas;
}

}  // namespace fathom::serve
