#include "fathom/tokenizer/answer/dsml/dsml_arguments.h"

#include <utility>

#include "fathom/base/ascii.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

// As append_json_string, for text that may be cut within a character.
void append_escaped(std::string& out, std::string_view text) {
  constexpr std::string_view kNamed = "\"\\\b\f\n\r\t";
  constexpr std::string_view kNames = "\"\\bfnrt";
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const size_t named = kNamed.find(c);
    const auto byte = static_cast<unsigned char>(c);
    if (named != kNamed.npos) {
      out += '\\';
      out += kNames[named];
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
}

const Json* properties_of(const ToolDefinition* tool) {
  if (tool == nullptr) return nullptr;
  const Json* properties = tool->parameters.find("properties");
  return properties != nullptr && properties->is_object() ? properties : nullptr;
}

}  // namespace

bool DsmlArguments::is_wrapper(std::string_view name) const {
  if (!names_.empty() || (name != "arguments" && name != "input")) return false;
  const Json* properties = properties_of(tool_);
  return properties != nullptr && properties->find(name) == nullptr;
}

bool DsmlArguments::is_declared_string(std::string_view name) const {
  const Json* properties = properties_of(tool_);
  const Json* property = properties != nullptr ? properties->find(name) : nullptr;
  const Json* type = property != nullptr ? property->find("type") : nullptr;
  return type != nullptr && type->is_string() && type->as_string() == "string";
}

void DsmlArguments::begin_parameter(std::string_view name, DsmlTag::Type type, std::string& out) {
  settle_wrapper(out);
  may_be_wrapper_ = is_wrapper(name);
  name_ = name;
  type_ = type;
  whole_.clear();
  if (!names_.emplace(name).second) {
    ++repairs_->duplicate_parameter;
    value_ = Value::kDropped;
    return;
  }
  if (type == DsmlTag::Type::kUnsaid) {
    ++repairs_->missing_type;
    if (is_declared_string(name)) type_ = DsmlTag::Type::kString;
  }
  value_ = type_ == DsmlTag::Type::kString && !may_be_wrapper_ ? Value::kString : Value::kWhole;
  if (value_ != Value::kString) return;
  print_name(out);
  out += '"';
}

void DsmlArguments::add_value(std::string_view text, std::string& out) {
  switch (value_) {
    case Value::kString:
      return append_escaped(out, text);
    case Value::kWhole:
      whole_ += text;
      return;
    case Value::kDropped:
      return;
  }
}

void DsmlArguments::end_parameter(std::string& out) {
  switch (value_) {
    case Value::kString:
      out += '"';
      break;
    case Value::kWhole:
      if (may_be_wrapper_) return;
      print_whole(out);
      break;
    case Value::kDropped:
      break;
  }
  value_ = Value::kDropped;
}

void DsmlArguments::print_name(std::string& out) {
  out += is_empty_ ? "{" : ", ";
  is_empty_ = false;
  append_json_string(out, name_, JsonCharset::kUtf8);
  out += ": ";
}

void DsmlArguments::print_whole(std::string& out) {
  print_name(out);
  const bool is_string = type_ == DsmlTag::Type::kString;
  if (!is_string && is_json(whole_)) {
    out += whole_;
    return;
  }
  if (!is_string) ++repairs_->not_json;
  out += '"';
  append_escaped(out, whole_);
  out += '"';
}

// A wrapper that another parameter follows is a parameter like any other.
void DsmlArguments::settle_wrapper(std::string& out) {
  if (!std::exchange(may_be_wrapper_, false)) return;
  print_whole(out);
  value_ = Value::kDropped;
}

void DsmlArguments::end(std::string& out) {
  const std::string_view object = trimmed(whole_);
  if (may_be_wrapper_ && object.starts_with('{') && is_json(object)) {
    ++repairs_->unwrapped;
    may_be_wrapper_ = false;
    out += object;
    return;
  }
  settle_wrapper(out);
  out += is_empty_ ? "{}" : "}";
}

void DsmlArguments::cut(std::string& out) {
  if (value_ != Value::kWhole) return;
  print_name(out);
  out += type_ == DsmlTag::Type::kString ? "\"" : "";
  if (type_ == DsmlTag::Type::kString) {
    append_escaped(out, whole_);
  } else {
    out += whole_;
  }
}

}  // namespace fathom
