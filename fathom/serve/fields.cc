#include "fathom/serve/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace fathom::serve {
namespace {

constexpr int64_t kMostStopIds = kMaxStopIds;
constexpr double kMaxExactInteger = 9007199254740992.0;  // 2^53

std::string shown(const Json& value) {
  if (value.is_string()) return str_cat("\"", value.as_string().substr(0, 64), "\"");
  if (value.kind() == Json::Kind::kInt) return str_cat(value.as_int());
  if (value.kind() == Json::Kind::kUint) return str_cat(value.as_uint());
  if (value.is_number()) return str_cat(value.as_double());
  if (value.is_bool()) return value.as_bool() ? "true" : "false";
  return std::string(value.kind_name());
}

}  // namespace

JsonLimits body_limits(int64_t max_bytes) {
  return {.max_depth = 128, .max_bytes = max_bytes, .max_string_bytes = 16ll << 20};
}

ParsedBody parse_body(std::string_view body) {
  constexpr int64_t kHardBodyLimit = 256ll << 20;  // what arrives is limited by serve/http before
  Result<Json> json = parse_json(body, body_limits(kHardBodyLimit), "request body");
  if (!json.ok()) return {{}, bad_value("", json.status().message(), "invalid_json")};
  if (!json->is_object()) {
    return {
        {},
        bad_value("", str_cat("request body: found ", json->kind_name(), ", expected an object"),
                  "invalid_json")};
  }
  return {std::move(json).value(), {}};
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

std::string Fields::at(std::string_view name) const {
  return path_.empty() ? std::string(name) : str_cat(path_, ".", name);
}

const Json* Fields::find(std::string_view name) {
  seen_.emplace(name);
  if (error_) return nullptr;
  const Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void Fields::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void Fields::wrong_kind(std::string_view name, const Json& found, std::string_view expected) {
  const std::string where = at(name);
  fail(bad_value(where, str_cat(where, ": found ", found.kind_name(), ", expected ", expected)));
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const std::string expected = str_cat("an integer from ", low, " to ", high);
  std::optional<int64_t> number;
  if (value->is_int()) {
    number = value->as_int();
  } else if (value->kind() == Json::Kind::kDouble) {
    const double d = value->as_double();
    if (std::trunc(d) == d && std::abs(d) <= kMaxExactInteger) number = static_cast<int64_t>(d);
  }
  if (!number && !value->is_number()) {
    wrong_kind(name, *value, expected);
    return {};
  }
  if (!number || *number < low || *number > high) {
    const std::string where = at(name);
    fail(bad_value(where, str_cat(where, ": found ", shown(*value), ", expected ", expected)));
    return {};
  }
  return number;
}

std::optional<double> Fields::number(std::string_view name,
                                     double low,
                                     double high,
                                     bool above_low) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const std::string expected = str_cat("a number ", above_low ? "above " : "from ", low,
                                       above_low ? ", at most " : " to ", high);
  if (!value->is_number()) {
    wrong_kind(name, *value, expected);
    return {};
  }
  const double d = value->as_double();
  if (!((above_low ? d > low : d >= low) && d <= high)) {  // NaN fails
    const std::string where = at(name);
    fail(bad_value(where, str_cat(where, ": found ", shown(*value), ", expected ", expected)));
    return {};
  }
  return d;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_bool()) {
    wrong_kind(name, *value, "true or false");
    return {};
  }
  return value->as_bool();
}

std::optional<std::string> Fields::text(std::string_view name, int64_t max_bytes) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    wrong_kind(name, *value, "a string");
    return {};
  }
  if (const auto size = static_cast<int64_t>(value->as_string().size()); size > max_bytes) {
    const std::string where = at(name);
    fail(bad_value(where, str_cat(where, ": ", size, " bytes, expected at most ", max_bytes)));
    return {};
  }
  return value->as_string();
}

std::string Fields::required_text(std::string_view name, int64_t max_bytes) {
  std::optional<std::string> found = text(name, max_bytes);
  if (found) return std::move(*found);
  const std::string where = at(name);
  fail(bad_value(where, str_cat(where, ": missing, expected a string")));
  return {};
}

const Json* Fields::array(std::string_view name, int64_t max_items) {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    wrong_kind(name, *value, "an array");
    return nullptr;
  }
  if (const auto size = static_cast<int64_t>(value->items().size()); size > max_items) {
    const std::string where = at(name);
    fail(bad_value(where, str_cat(where, ": ", size, " items, expected at most ", max_items)));
    return nullptr;
  }
  return value;
}

const Json* Fields::object(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) {
    wrong_kind(name, *value, "an object");
    return nullptr;
  }
  return value;
}

const Json* Fields::value(std::string_view name) {
  return find(name);
}

std::optional<size_t> Fields::word(std::string_view name,
                                   const std::vector<std::string_view>& words) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  std::string expected = "one of";
  for (size_t i = 0; i < words.size(); ++i) {
    if (value->is_string() && value->as_string() == words[i]) return i;
    str_append(expected, str_cat(i == 0 ? " " : ", ", words[i]));
  }
  const std::string where = at(name);
  fail(bad_value(where, str_cat(where, ": found ", shown(*value), ", expected ", expected)));
  return {};
}

void Fields::refuse(std::string_view name, std::string_view why, const Json& harmless) {
  const Json* value = find(name);
  if (value == nullptr || *value == harmless) return;
  const std::string where = at(name);
  fail(bad_value(where, str_cat(where, ": ", why), "unsupported_parameter"));
}

void Fields::refuse_unknown() {
  if (error_ || !object_.is_object()) return;
  for (const auto& [name, value] : object_.members()) {
    if (seen_.contains(name)) continue;
    const std::string where = at(name.substr(0, 64));
    fail(bad_value(where, str_cat(where, ": unknown field (--strict-api)"),
                   "unsupported_parameter"));
    return;
  }
}

namespace {

void read_float(Fields& fields, std::string_view name, double low, double high, float& out) {
  if (const auto value = fields.number(name, low, high)) out = static_cast<float>(*value);
}

}  // namespace

void read_stop(Fields& fields, std::string_view name, SamplingParams& params) {
  const Json* stop = fields.value(name);
  if (stop == nullptr) return;
  const std::string place = fields.at(name);
  std::vector<const Json*> texts;
  if (stop->is_array()) {
    for (const Json& item : stop->items())
      texts.push_back(&item);
  } else {
    texts.push_back(stop);
  }
  if (static_cast<int64_t>(texts.size()) > kMaxStopStrings) {
    fields.fail(bad_value(
        place, str_cat(place, ": ", texts.size(), " strings, expected at most ", kMaxStopStrings)));
    return;
  }
  params.stop.clear();
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string where = stop->is_array() ? str_cat(place, "[", i, "]") : place;
    if (!texts[i]->is_string()) {
      fields.fail(bad_value(
          where, str_cat(where, ": found ", texts[i]->kind_name(), ", expected a string")));
      return;
    }
    const std::string& text = texts[i]->as_string();
    if (text.empty() || static_cast<int64_t>(text.size()) > kMaxStopStringBytes) {
      fields.fail(bad_value(
          where, str_cat(where, ": ", text.size(), " bytes, expected 1 to ", kMaxStopStringBytes)));
      return;
    }
    params.stop.push_back(text);
  }
}

namespace {

void read_stop_ids(Fields& fields, int64_t vocab_size, SamplingParams& params) {
  const Json* ids = fields.array("stop_token_ids", kMostStopIds);
  if (ids == nullptr) return;
  params.stop_token_ids.clear();
  for (size_t i = 0; i < ids->items().size(); ++i) {
    const Json& id = ids->items()[i];
    if (!id.is_int() || id.as_int() < 0 || id.as_int() >= vocab_size) {
      const std::string where = str_cat("stop_token_ids[", i, "]");
      fields.fail(bad_value(
          where, str_cat(where, ": found ", shown(id), ", expected 0 to ", vocab_size - 1)));
      return;
    }
    params.stop_token_ids.push_back(static_cast<int32_t>(id.as_int()));
  }
}

// {"50256": -100}: keys are ids as texts.
void read_logit_bias(Fields& fields, int64_t vocab_size, SamplingParams& params) {
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  if (const auto size = static_cast<int64_t>(bias->members().size()); size > kMaxLogitBias) {
    fields.fail(bad_value(
        "logit_bias", str_cat("logit_bias: ", size, " entries, expected at most ", kMaxLogitBias)));
    return;
  }
  params.logit_bias.clear();
  for (const auto& [key, value] : bias->members()) {
    const std::string where = str_cat("logit_bias.", key.substr(0, 32));
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc{} || end != key.data() + key.size() || id < 0 || id >= vocab_size) {
      fields.fail(bad_value(where, str_cat(where, ": expected a token id from 0 to ",
                                           vocab_size - 1, " as the key")));
      return;
    }
    if (!value.is_number() || !(value.as_double() >= -100 && value.as_double() <= 100)) {
      fields.fail(bad_value(
          where, str_cat(where, ": found ", shown(value), ", expected a number from -100 to 100")));
      return;
    }
    const auto token = static_cast<int32_t>(id);
    if (std::ranges::any_of(params.logit_bias, [&](const auto& b) { return b.first == token; })) {
      fields.fail(bad_value(where, str_cat(where, ": token ", id, " has a bias already")));
      return;
    }
    params.logit_bias.emplace_back(token, static_cast<float>(value.as_double()));
  }
}

}  // namespace

void read_sampling(Fields& fields, int64_t vocab_size, SamplingParams& params) {
  read_float(fields, "temperature", 0, 2, params.temperature);
  if (const auto p = fields.number("top_p", 0, 1, true)) params.top_p = static_cast<float>(*p);
  read_float(fields, "min_p", 0, 1, params.min_p);
  if (const auto k = fields.integer("top_k", -1, vocab_size)) params.top_k = *k;
  read_float(fields, "presence_penalty", -2, 2, params.presence_penalty);
  read_float(fields, "frequency_penalty", -2, 2, params.frequency_penalty);
  if (const auto r = fields.number("repetition_penalty", 0, 10, true)) {
    params.repetition_penalty = static_cast<float>(*r);
  }
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    params.seed = static_cast<uint64_t>(*seed);
  }
  if (const auto least = fields.integer("min_tokens", 0, INT64_MAX)) params.min_tokens = *least;
  if (const auto ignore = fields.boolean("ignore_eos")) params.ignore_eos = *ignore;
  read_stop(fields, "stop", params);
  read_stop_ids(fields, vocab_size, params);
  read_logit_bias(fields, vocab_size, params);
}

}  // namespace fathom::serve
