// Random answers that a grammar allows, and a small checker of JSON schemas that shares nothing
// with the code under test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"
#include "fathom/runtime/sample/token_constraint.h"
#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/control_tokens.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

/// A small deterministic stream of numbers.
class WalkRng {
 public:
  explicit WalkRng(uint64_t seed) : state_(seed * 2 + 1) {}

  size_t below(size_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((state_ >> 33) % n);
  }

 private:
  uint64_t state_;
};

/// The vocabulary of tests/golden/tokenizer/tiny-v3, with added tokens for `markers`.
inline Result<Tokenizer> marked_tokenizer(const std::string& dir,
                                          std::initializer_list<std::string_view> markers) {
  auto text = read_file(dir + "/tokenizer.json", 8 << 20);
  if (!text.ok()) return std::move(text).status();
  JsonLimits limits;
  limits.max_bytes = 8 << 20;
  auto json = parse_json(*text, limits, "tokenizer.json");
  if (!json.ok()) return std::move(json).status();
  for (JsonMember& member : json->members()) {
    if (member.first != "added_tokens") continue;
    int64_t id = 4096;
    for (const std::string_view marker : markers) {
      Json token = member.second.items().back();
      for (JsonMember& field : token.members()) {
        if (field.first == "id") field.second = Json::integer(id);
        if (field.first == "content") field.second = Json::string(std::string{marker});
      }
      member.second.items().push_back(std::move(token));
      ++id;
    }
  }
  return Tokenizer::load_from_json(dump_json(*json), "", "marked");
}

/// A walk through a grammar by tokens that it allows.
class GrammarWalk {
 public:
  GrammarWalk(const Tokenizer& tokenizer, int64_t width, int32_t end, uint64_t seed)
      : tokenizer_(tokenizer),
        rng_(seed),
        end_(end),
        mask_(static_cast<size_t>((width + 31) / 32)) {
    for (const std::string_view text :
         {"}", "]", "\"", "</", "<", "/", ">", "Ċ", "0", "false", "true", "null", "p", "i", ","}) {
      if (const auto id = tokenizer.token_to_id(text)) closers_.push_back(*id);
    }
    for (const std::string_view text : control::kAll) {
      const auto id = tokenizer.token_to_id(text);
      if (id && tokenizer.is_added(*id)) closers_.push_back(*id);
    }
  }

  /// Walks to an end token: random tokens first, then those that tend to close things. The ids
  /// without the end; `ended` says whether it came within `max_tokens`.
  std::vector<int32_t> walk(TokenConstraint& constraint, int64_t num_random, int64_t max_tokens) {
    std::vector<int32_t> ids;
    ended = false;
    for (int64_t i = 0; i < max_tokens; ++i) {
      const int32_t id = pick(constraint, i < num_random);
      if (id < 0 || !constraint.accept(id)) {
        problem = str_cat("the token ", id, " was not taken after ", i);
        return ids;
      }
      if (id == end_) {
        ended = true;
        return ids;
      }
      ids.push_back(id);
      note(id);
    }
    return ids;
  }

  /// One allowed token; -1 if there is none.
  int32_t pick(TokenConstraint& constraint, bool is_random) {
    std::fill(mask_.begin(), mask_.end(), 0xAAAAAAAAu);
    place = constraint.next(mask_);
    if (place == ConstraintPlace::kFree) return end_;
    std::vector<int32_t> allowed;
    for (size_t word = 0; word < mask_.size(); ++word) {
      for (uint32_t bits = mask_[word]; bits != 0; bits &= bits - 1)
        allowed.push_back(static_cast<int32_t>(word * 32) + __builtin_ctz(bits));
    }
    for (const int32_t id : allowed) {
      // Never an added token, but for ends and the markers of calls.
      const bool is_marker = std::find(closers_.begin(), closers_.end(), id) != closers_.end();
      if (id >= tokenizer_.vocab_size() || (tokenizer_.is_added(id) && id != end_ && !is_marker))
        problem = str_cat("the mask allows the token ", id);
    }
    num_allowed = allowed.size();
    if (allowed.empty()) return -1;
    if (!is_random && allows(end_)) return end_;
    if (!spelling_.empty() && allows(spelling_.front())) {
      const int32_t id = spelling_.front();
      spelling_.erase(spelling_.begin());
      return id;
    }
    spelling_.clear();
    std::vector<int32_t> closers;
    for (const int32_t id : closers_) {
      if (!is_random && allows(id) && tokenizer_.is_added(id)) {
        // A marker behind "<" opens what one behind "</" would close.
        const auto slash = tokenizer_.token_to_id("/");
        return slash && allows(*slash) && rng_.below(2) == 0 ? *slash : id;
      }
      if (allows(id) && suits(id)) closers.push_back(id);
    }
    if (std::any_of(allowed.begin(), allowed.end(), [&](int32_t id) { return suits(id); }))
      std::erase_if(allowed, [&](int32_t id) { return !suits(id); });
    const bool is_closing = !is_random && !closers.empty() && rng_.below(8) != 0;
    if (is_closing)
      return closers[std::min(rng_.below(closers.size()), rng_.below(closers.size()))];
    return allowed[rng_.below(allowed.size())];
  }

  bool allows(int32_t id) const {
    return (mask_[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
  }

  bool ended = false;
  size_t num_allowed = 0;
  ConstraintPlace place = ConstraintPlace::kFree;
  std::string problem;  ///< what went wrong; empty if nothing did

 private:
  // Numbers stay small: JSON beyond double is no JSON for the readers, and long ones are dull.
  bool suits(int32_t id) const {
    constexpr std::string_view kOfNumbers = "0123456789eE";
    const std::string_view bytes = tokenizer_.token_bytes(id);
    if (num_digits_ == 0 || bytes.empty()) return true;
    if (bytes[0] == 'e' || bytes[0] == 'E') return false;
    return num_digits_ < 8 || kOfNumbers.find(bytes[0]) == kOfNumbers.npos;
  }

  void note(int32_t id) {
    const std::string_view bytes = tokenizer_.token_bytes(id);
    for (const char c : bytes)
      num_digits_ = c >= '0' && c <= '9' ? num_digits_ + 1 : 0;
    tail_ = tail_.substr(tail_.size() - std::min<size_t>(tail_.size(), 1)) + std::string{bytes};
    const auto marker = tokenizer_.token_to_id(control::kDsml);
    const bool is_spelled = !marker || !tokenizer_.is_added(*marker);
    if (tail_.ends_with("</") && is_spelled) spelling_ = tokenizer_.encode(control::kDsml);
  }

  const Tokenizer& tokenizer_;
  int num_digits_ = 0;
  std::string tail_;
  std::vector<int32_t> spelling_;  // of a marker that is text, begun or not
  WalkRng rng_;
  int32_t end_;
  std::vector<uint32_t> mask_;
  std::vector<int32_t> closers_;
};

/// Whether a value follows a schema, by the keywords that the tests use.
class SchemaOracle {
 public:
  explicit SchemaOracle(const Json& root) : root_(root) {}

  bool allows(const Json& value) const { return allows(root_, value); }

  bool allows(const Json& schema, const Json& value) const {
    if (schema.is_bool()) return schema.as_bool();
    for (const auto& [key, rule] : schema.members())
      if (!follows(schema, key, rule, value)) return false;
    return true;
  }

 private:
  static bool has_type(std::string_view type, const Json& value) {
    if (type == "integer")
      return value.is_number() && value.as_double() == std::floor(value.as_double());
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_bool();
    if (type == "null") return value.is_null();
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
  }

  static int64_t characters(const std::string& text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  }

  static bool same(const Json& a, const Json& b) {
    return a == b || (a.is_number() && b.is_number() && a.as_double() == b.as_double());
  }

  int64_t num_allowing(const Json& schemas, const Json& value) const {
    return std::count_if(schemas.items().begin(), schemas.items().end(),
                         [&](const Json& one) { return allows(one, value); });
  }

  bool follows(const Json& schema,
               std::string_view key,
               const Json& rule,
               const Json& value) const {
    if (key == "type") {
      if (rule.is_string()) return has_type(rule.as_string(), value);
      return std::any_of(rule.items().begin(), rule.items().end(),
                         [&](const Json& one) { return has_type(one.as_string(), value); });
    }
    if (key == "const") return same(rule, value);
    if (key == "enum")
      return std::any_of(rule.items().begin(), rule.items().end(),
                         [&](const Json& one) { return same(one, value); });
    if (key == "anyOf") return num_allowing(rule, value) > 0;
    if (key == "oneOf") return num_allowing(rule, value) == 1;
    if (key == "$ref") {
      const Json* target = &root_;
      std::string_view path{rule.as_string()};
      while (path.find('/') != path.npos) {
        path.remove_prefix(path.find('/') + 1);
        target = target->find(path.substr(0, path.find('/')));
      }
      return allows(*target, value);
    }
    if (value.is_string()) {
      if (key == "minLength") return characters(value.as_string()) >= rule.as_int();
      if (key == "maxLength") return characters(value.as_string()) <= rule.as_int();
    }
    if (value.is_number()) {
      const double v = value.as_double();
      if (key == "minimum") return v >= rule.as_double();
      if (key == "maximum") return v <= rule.as_double();
      if (key == "exclusiveMinimum") return v > rule.as_double();
      if (key == "exclusiveMaximum") return v < rule.as_double();
      // Beyond 2^53 a double says nothing of the last digit.
      if (key == "multipleOf")
        return v > 9e15 || v < -9e15 || static_cast<int64_t>(v) % rule.as_int() == 0;
    }
    if (value.is_array()) return follows_items(schema, key, rule, value);
    if (value.is_object()) return follows_members(schema, key, rule, value);
    return true;
  }

  bool follows_items(const Json& schema,
                     std::string_view key,
                     const Json& rule,
                     const Json& value) const {
    const auto& items = value.items();
    const auto size = static_cast<int64_t>(items.size());
    if (key == "minItems") return size >= rule.as_int();
    if (key == "maxItems") return size <= rule.as_int();
    const Json* prefix = schema.find("prefixItems");
    const size_t num_prefix = prefix != nullptr ? prefix->items().size() : 0;
    for (size_t i = 0; i < items.size(); ++i) {
      if (key == "prefixItems" && i < num_prefix && !allows(rule.items()[i], items[i]))
        return false;
      if (key == "items" && i >= num_prefix && !allows(rule, items[i])) return false;
    }
    return true;
  }

  bool follows_members(const Json& schema,
                       std::string_view key,
                       const Json& rule,
                       const Json& value) const {
    const auto size = static_cast<int64_t>(value.members().size());
    if (key == "minProperties") return size >= rule.as_int();
    if (key == "maxProperties") return size <= rule.as_int();
    if (key == "required") {
      return std::all_of(rule.items().begin(), rule.items().end(),
                         [&](const Json& name) { return value.find(name.as_string()) != nullptr; });
    }
    const Json* properties = schema.find("properties");
    for (const auto& [name, member] : value.members()) {
      const Json* own = properties != nullptr ? properties->find(name) : nullptr;
      if (key == "properties" && own != nullptr && !allows(*own, member)) return false;
      if (key == "additionalProperties" && own == nullptr && !allows(rule, member)) return false;
    }
    return true;
  }

  const Json& root_;
};

}  // namespace fathom
