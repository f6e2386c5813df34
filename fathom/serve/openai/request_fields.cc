#include "fathom/serve/openai/request_fields.h"

#include <algorithm>
#include <chrono>

#include "fathom/serve/answer/reply_form.h"

namespace fathom::serve {
namespace {

constexpr int64_t kMaxMetadata = 64;  // entries

void read_metadata(Fields& fields) {
  const Json* metadata = fields.object("metadata");
  if (metadata == nullptr) return;
  if (const auto size = static_cast<int64_t>(metadata->members().size()); size > kMaxMetadata) {
    fields.fail(bad_value(
        "metadata", str_cat("metadata: ", size, " entries, expected at most ", kMaxMetadata)));
  }
  for (const auto& [key, value] : metadata->members()) {
    const auto size = static_cast<int64_t>(
        std::max(key.size(), value.is_string() ? value.as_string().size() : size_t{0}));
    if (size <= kMaxIdBytes) continue;
    const std::string where = str_cat("metadata.", key.substr(0, 64));
    fields.fail(
        bad_value(where, str_cat(where, ": ", size, " bytes, expected at most ", kMaxIdBytes)));
  }
}

int64_t unix_time_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace

std::string read_model_name(Fields& fields, const ServedModel& model) {
  const auto asked = fields.text("model", kMaxIdBytes);
  if (const auto error = model.check_name(asked)) fields.fail(*error);
  const bool served = asked && std::ranges::find(model.names, *asked) != model.names.end();
  return served ? *asked : model.name();
}

ReplyStyle read_reply_style(Fields& fields, const ServedModel& model, std::string_view prefix) {
  ReplyStyle style{.id = unguessable_id(prefix),
                   .model = read_model_name(fields, model),
                   .system_fingerprint = model.system_fingerprint,
                   .created_s = unix_time_s(),
                   .tokenizer = model.tokenizer};
  style.stream = fields.boolean("stream").value_or(false);
  style.timings = fields.boolean("timings").value_or(false);
  if (const Json* json = fields.object("stream_options")) {
    Fields options(*json, fields.at("stream_options"));
    style.include_usage = options.boolean("include_usage").value_or(false);
    style.continuous_usage = options.boolean("continuous_usage_stats").value_or(false);
    options.ignore("include_obfuscation");
    if (options.error()) fields.fail(*options.error());
  }
  return style;
}

int read_num_choices(Fields& fields) {
  const int64_t n = fields.integer("n", 1, kMaxChoices).value_or(1);
  const auto best_of = fields.integer("best_of", 1, kMaxChoices);
  if (best_of && *best_of != n) {
    fields.fail(
        bad_value("best_of", str_cat("best_of: found ", *best_of, ", expected n, which is ", n)));
  }
  return static_cast<int>(n);
}

int read_prompt_logprobs(Fields& fields) {
  return static_cast<int>(fields.integer("prompt_logprobs", 0, kMaxTopLogprobs).value_or(-1));
}

CacheScope read_cache_scope(Fields& fields, std::string_view key_digest) {
  CacheScope scope{.key_digest = std::string(key_digest), .cache_salt = {}, .prompt_cache_key = {}};
  scope.cache_salt = fields.text("cache_salt", kMaxIdBytes).value_or("");
  scope.prompt_cache_key = fields.text("prompt_cache_key", kMaxIdBytes).value_or("");
  return scope;
}

std::vector<int32_t> read_token_ids(Fields& fields,
                                    const Json& array,
                                    const std::string& where,
                                    int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < array.items().size(); ++i) {
    const Json& id = array.items()[i];
    if (!id.is_int() || id.as_int() < 0 || id.as_int() >= vocab_size) {
      const std::string place = str_cat(where, "[", i, "]");
      const std::string found = id.is_number() ? dump_json(id) : std::string(id.kind_name());
      fields.fail(bad_value(place, str_cat(place, ": found ", found,
                                           ", expected a token id from 0 to ", vocab_size - 1)));
      return {};
    }
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  return ids;
}

void read_idle_fields(Fields& fields) {
  for (const std::string_view name : {"user", "safety_identifier", "request_id"})
    fields.text(name, kMaxIdBytes);
  read_metadata(fields);
  for (const std::string_view name :
       {"store", "service_tier", "verbosity", "prompt_cache_retention", "prediction",
        "length_penalty", "early_stopping", "spaces_between_special_tokens"}) {
    fields.ignore(name);
  }
  constexpr std::string_view kNotHere = "is not supported";
  fields.refuse("use_beam_search", "beam search is not supported", Json::boolean(false));
  fields.refuse("skip_special_tokens", "only true is supported", Json::boolean(true));
  fields.refuse("include_stop_str_in_output", kNotHere, Json::boolean(false));
  fields.refuse("return_token_ids", kNotHere, Json::boolean(false));
  fields.refuse("priority", "requests are served in the order of their arrival", Json::integer(0));
  for (const std::string_view name :
       {"kv_transfer_params", "cache_hit_threshold", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "truncate_prompt_tokens", "allowed_token_ids", "bad_words",
        "prompt_embeds", "input_embeds", "lora_path"}) {
    fields.refuse(name, kNotHere);
  }
}

}  // namespace fathom::serve
