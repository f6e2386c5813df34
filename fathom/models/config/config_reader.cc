#include "fathom/models/config/config_reader.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

constexpr size_t kMaxQuoted = 64;

// A value as a message shows it: scalars as they are, containers by kind.
std::string show(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return str_cat(value.as_bool());
    case Json::Kind::kInt:
      return str_cat(value.as_int());
    case Json::Kind::kUint:
      return str_cat(value.as_uint());
    case Json::Kind::kDouble:
      return str_cat(value.as_double());
    case Json::Kind::kString:
      return str_cat("\"", value.as_string().substr(0, kMaxQuoted), "\"");
    case Json::Kind::kArray:
    case Json::Kind::kObject:
      break;
  }
  return std::string(value.kind_name());
}

}  // namespace

ConfigReader::ConfigReader(const Json& object, std::string what)
    : object_(object), what_(std::move(what)) {
  if (!object_.is_object()) {
    fail(corrupt(str_cat(what_, ": found ", object_.kind_name(), ", expected an object")));
  }
}

const Json* ConfigReader::find(std::string_view key) const {
  const Json* value = object_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool ConfigReader::has_prefix(std::string_view prefix) const {
  if (!object_.is_object()) return false;
  return std::ranges::any_of(object_.members(),
                             [&](const JsonMember& m) { return m.first.starts_with(prefix); });
}

bool ConfigReader::has(std::string_view key) const {
  return find(key) != nullptr;
}

std::string ConfigReader::found(std::string_view key) const {
  const Json* value = find(key);
  return value == nullptr ? "missing" : show(*value);
}

void ConfigReader::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void ConfigReader::fail_value(std::string_view key, std::string_view expected) {
  fail(corrupt(str_cat(what_, ": ", key, " is ", found(key), ", expected ", expected)));
}

int64_t ConfigReader::integer(std::string_view key, int64_t low, int64_t high) {
  const Json* value = find(key);
  if (value == nullptr || !value->is_int() || value->as_int() < low || value->as_int() > high) {
    fail_value(key, str_cat("an integer from ", low, " to ", high));
    return low;
  }
  return value->as_int();
}

int64_t ConfigReader::integer_or(std::string_view key, int64_t low, int64_t high, int64_t absent) {
  return has(key) ? integer(key, low, high) : absent;
}

double ConfigReader::number(std::string_view key, double low, double high) {
  const Json* value = find(key);
  if (value == nullptr || !value->is_number() ||
      !(value->as_double() >= low && value->as_double() <= high)) {
    fail_value(key, str_cat("a number from ", low, " to ", high));
    return low;
  }
  return value->as_double();
}

double ConfigReader::number_or(std::string_view key, double low, double high, double absent) {
  return has(key) ? number(key, low, high) : absent;
}

bool ConfigReader::boolean_or(std::string_view key, bool absent) {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_bool()) {
    fail_value(key, "true or false");
    return absent;
  }
  return value->as_bool();
}

std::string ConfigReader::text_or(std::string_view key, std::string_view absent) {
  const Json* value = find(key);
  if (value == nullptr) return std::string(absent);
  if (!value->is_string()) {
    fail_value(key, "a string");
    return std::string(absent);
  }
  return value->as_string();
}

std::vector<int64_t> ConfigReader::ids(std::string_view key, int64_t high) {
  constexpr size_t kMaxIds = 1024;
  std::vector<int64_t> out;
  const Json* value = find(key);
  if (value == nullptr) return out;
  const std::string expected = str_cat("one token id or a list of at most ",
                                       static_cast<int64_t>(kMaxIds), ", each from 0 to ", high);
  const auto add = [&](const Json& id) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > high) {
      const std::string place =
          value->is_array() ? str_cat(key, "[", out.size(), "]") : str_cat(key);
      return fail(corrupt(str_cat(what_, ": ", place, " is ", show(id), ", expected ", expected)));
    }
    out.push_back(id.as_int());
  };
  if (!value->is_array()) {
    add(*value);
    return out;
  }
  if (value->items().size() > kMaxIds) {
    fail_value(key, expected);
    return out;
  }
  for (const Json& id : value->items()) {
    if (status_.ok()) add(id);
  }
  return out;
}

}  // namespace fathom
