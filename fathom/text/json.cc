#include "fathom/text/json.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "fathom/base/check.h"
#include "fathom/text/utf8.h"

namespace fathom {

Json::~Json() {
  destroy();
}

void Json::destroy() {
  switch (kind_) {
    case Kind::kString:
      std::unique_ptr<std::string>{string_}.reset();
      break;
    case Kind::kArray:
      std::unique_ptr<std::vector<Json>>{items_}.reset();
      break;
    case Kind::kObject:
      std::unique_ptr<std::vector<JsonMember>>{members_}.reset();
      break;
    case Kind::kNull:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kUint:
    case Kind::kDouble:
      break;
  }
  kind_ = Kind::kNull;
  int_ = 0;
}

Json::Json(const Json& other) {
  switch (other.kind_) {
    case Kind::kString:
      string_ = std::make_unique<std::string>(*other.string_).release();
      break;
    case Kind::kArray:
      items_ = std::make_unique<std::vector<Json>>(*other.items_).release();
      break;
    case Kind::kObject:
      members_ = std::make_unique<std::vector<JsonMember>>(*other.members_).release();
      break;
    case Kind::kNull:
      break;
    case Kind::kBool:
      bool_ = other.bool_;
      break;
    case Kind::kInt:
      int_ = other.int_;
      break;
    case Kind::kUint:
      uint_ = other.uint_;
      break;
    case Kind::kDouble:
      double_ = other.double_;
      break;
  }
  kind_ = other.kind_;
}

Json::Json(Json&& other) noexcept {
  // Every alternative lies in the same eight bytes.
  std::memcpy(&int_, &other.int_, sizeof int_);
  kind_ = other.kind_;
  other.kind_ = Kind::kNull;
  other.int_ = 0;
}

Json& Json::operator=(const Json& other) {
  if (this != &other) *this = Json{other};
  return *this;
}

Json& Json::operator=(Json&& other) noexcept {
  if (this == &other) return *this;
  // Taken first: `other` may lie inside this value.
  Json taken{std::move(other)};
  destroy();
  std::memcpy(&int_, &taken.int_, sizeof int_);
  kind_ = taken.kind_;
  taken.kind_ = Kind::kNull;
  return *this;
}

Json Json::boolean(bool value) {
  Json json;
  json.kind_ = Kind::kBool;
  json.bool_ = value;
  return json;
}

Json Json::integer(int64_t value) {
  Json json;
  json.kind_ = Kind::kInt;
  json.int_ = value;
  return json;
}

Json Json::unsigned_integer(uint64_t value) {
  if (value <= static_cast<uint64_t>(INT64_MAX)) return integer(static_cast<int64_t>(value));
  Json json;
  json.kind_ = Kind::kUint;
  json.uint_ = value;
  return json;
}

Json Json::number(double value) {
  Json json;
  json.kind_ = Kind::kDouble;
  json.double_ = value;
  return json;
}

Json Json::string(std::string value) {
  Json json;
  json.string_ = std::make_unique<std::string>(std::move(value)).release();
  json.kind_ = Kind::kString;
  return json;
}

Json Json::array(std::vector<Json> items) {
  Json json;
  json.items_ = std::make_unique<std::vector<Json>>(std::move(items)).release();
  json.kind_ = Kind::kArray;
  return json;
}

Json Json::object(std::vector<JsonMember> members) {
  Json json;
  json.members_ = std::make_unique<std::vector<JsonMember>>(std::move(members)).release();
  json.kind_ = Kind::kObject;
  return json;
}

std::string_view Json::kind_name() const {
  switch (kind_) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInt:
      return "an integer";
    case Kind::kUint:
      return "an integer above 2^63 - 1";
    case Kind::kDouble:
      return "a number with a fraction or an exponent";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return "nothing";
}

bool Json::as_bool() const {
  FATHOM_CHECK(kind_ == Kind::kBool, kind_name());
  return bool_;
}

int64_t Json::as_int() const {
  FATHOM_CHECK(kind_ == Kind::kInt, kind_name());
  return int_;
}

uint64_t Json::as_uint() const {
  if (kind_ == Kind::kUint) return uint_;
  FATHOM_CHECK(kind_ == Kind::kInt && int_ >= 0, kind_name());
  return static_cast<uint64_t>(int_);
}

double Json::as_double() const {
  if (kind_ == Kind::kInt) return static_cast<double>(int_);
  if (kind_ == Kind::kUint) return static_cast<double>(uint_);
  FATHOM_CHECK(kind_ == Kind::kDouble, kind_name());
  return double_;
}

const std::string& Json::as_string() const {
  FATHOM_CHECK(kind_ == Kind::kString, kind_name());
  return *string_;
}

const std::vector<Json>& Json::items() const {
  FATHOM_CHECK(kind_ == Kind::kArray, kind_name());
  return *items_;
}

const std::vector<JsonMember>& Json::members() const {
  FATHOM_CHECK(kind_ == Kind::kObject, kind_name());
  return *members_;
}

std::vector<Json>& Json::items() {
  FATHOM_CHECK(kind_ == Kind::kArray, kind_name());
  return *items_;
}

std::vector<JsonMember>& Json::members() {
  FATHOM_CHECK(kind_ == Kind::kObject, kind_name());
  return *members_;
}

const Json* Json::find(std::string_view key) const {
  if (kind_ != Kind::kObject) return nullptr;
  for (const auto& [name, value] : *members_) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool operator==(const Json& a, const Json& b) {
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case Json::Kind::kNull:
      return true;
    case Json::Kind::kBool:
      return a.bool_ == b.bool_;
    case Json::Kind::kInt:
      return a.int_ == b.int_;
    case Json::Kind::kUint:
      return a.uint_ == b.uint_;
    case Json::Kind::kDouble:
      return a.double_ == b.double_;
    case Json::Kind::kString:
      return *a.string_ == *b.string_;
    case Json::Kind::kArray:
      return *a.items_ == *b.items_;
    case Json::Kind::kObject:
      return *a.members_ == *b.members_;
  }
  return false;
}

namespace {

// The SAX interface does not say where the parser is, so the iterator notes it on each step.
class NotingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  NotingIterator(const char* at, const char** note) : at_(at), note_(note) {}

  reference operator*() const { return *at_; }

  NotingIterator& operator++() {
    *note_ = ++at_;
    return *this;
  }

  NotingIterator operator++(int) {
    const NotingIterator before = *this;
    ++*this;
    return before;
  }

  bool operator==(const NotingIterator& other) const { return at_ == other.at_; }

  bool operator!=(const NotingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** note_;
};

// A piece of input that is fit for a message: valid UTF-8 and short.
std::string excerpt(std::string_view text) {
  constexpr size_t kMaxBytes = 120;
  if (text.size() <= kMaxBytes) return utf8_lossy(text);
  return str_cat(utf8_lossy(text.substr(0, kMaxBytes)), "...");
}

// Two members with the same key, or null. O(n log n) whatever the keys are: a hash could be
// flooded.
const std::string* find_duplicate(const std::vector<JsonMember>& members) {
  constexpr size_t kFew = 8;
  if (members.size() <= kFew) {
    for (size_t i = 1; i < members.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (members[i].first == members[j].first) return &members[i].first;
      }
    }
    return nullptr;
  }

  struct Key {
    uint64_t prefix;  // the first eight bytes, big-endian: decides most comparisons without a miss
    const std::string* text;
  };

  std::vector<Key> keys;
  keys.reserve(members.size());
  for (const auto& [name, value] : members) {
    uint64_t prefix = 0;
    for (size_t i = 0; i < 8; ++i) {
      prefix = prefix << 8 | (i < name.size() ? static_cast<unsigned char>(name[i]) : 0u);
    }
    keys.push_back({prefix, &name});
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    return a.prefix != b.prefix ? a.prefix < b.prefix : *a.text < *b.text;
  });
  for (size_t i = 1; i < keys.size(); ++i) {
    if (keys[i].prefix == keys[i - 1].prefix && *keys[i].text == *keys[i - 1].text) {
      return keys[i].text;
    }
  }
  return nullptr;
}

// Builds the tree from parser events. A callback that returns false ends the parse.
class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(std::string_view text, const JsonLimits& limits, std::string_view what)
      : text_(text), limits_(limits), what_(what), position_(text.data()) {}

  NotingIterator begin() { return {text_.data(), &position_}; }

  NotingIterator end() { return {text_.data() + text_.size(), &position_}; }

  Json take_root() { return std::move(root_); }

  Status take_status() { return std::move(status_); }

  bool null() override { return add(Json{}); }

  bool boolean(bool value) override { return add(Json::boolean(value)); }

  bool number_integer(int64_t value) override { return add(Json::integer(value)); }

  bool number_unsigned(uint64_t value) override { return add(Json::unsigned_integer(value)); }

  bool number_float(double value, const std::string& raw) override {
    // The parser turns integers that fit neither 64-bit type into doubles.
    if (raw.find_first_of(".eE") == std::string::npos &&
        limits_.big_integer == JsonLimits::BigInteger::kRefuse) {
      return fail(str_cat("the integer ", excerpt(raw), " does not fit 64 bits"));
    }
    return add(Json::number(value));
  }

  bool string(std::string& value) override {
    if (!check_string(value)) return false;
    return add(Json::string(std::move(value)));
  }

  bool binary(nlohmann::json::binary_t&) override { return fail("binary value"); }

  bool start_object(size_t) override { return open(Json::object()); }

  bool key(std::string& value) override {
    if (!check_string(value)) return false;
    auto& members = open_.back()->members();
    if (static_cast<int64_t>(members.size()) >= limits_.max_keys) {
      return fail(str_cat("an object has more than ", limits_.max_keys, " keys"));
    }
    members.emplace_back(std::move(value), Json{});
    return true;
  }

  bool end_object() override {
    if (const auto* name = find_duplicate(open_.back()->members())) {
      return fail(
          str_cat("the key \"", excerpt(*name), "\" appears twice in the object ending here"));
    }
    open_.pop_back();
    return true;
  }

  bool start_array(size_t) override { return open(Json::array()); }

  bool end_array() override {
    open_.pop_back();
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: DETAIL"; the part before
    // the detail repeats the position in another unit.
    std::string_view detail = error.what();
    if (const auto bracket = detail.find("] "); bracket != std::string_view::npos) {
      detail.remove_prefix(bracket + 2);
    }
    if (detail.starts_with("parse error")) {
      if (const auto colon = detail.find(": "); colon != std::string_view::npos) {
        detail.remove_prefix(colon + 2);
      }
    }
    return fail(excerpt(detail));
  }

 private:
  bool fail(std::string_view reason) {
    const int64_t offset = position_ - text_.data();
    status_ = corrupt(str_cat(what_, ": byte ", offset, ": ", reason));
    return false;
  }

  bool check_string(const std::string& value) {
    if (static_cast<int64_t>(value.size()) <= limits_.max_string_bytes) return true;
    return fail(str_cat("a string has ", value.size(), " bytes, more than the limit of ",
                        limits_.max_string_bytes));
  }

  // The value that `json` became; it stays in place while it is the last one of its parent.
  Json* place(Json json) {
    if (open_.empty()) {
      root_ = std::move(json);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) return &parent.items().emplace_back(std::move(json));
    Json& slot = parent.members().back().second;
    slot = std::move(json);
    return &slot;
  }

  bool add(Json json) {
    place(std::move(json));
    return true;
  }

  bool open(Json json) {
    if (static_cast<int64_t>(open_.size()) >= limits_.max_depth) {
      return fail(str_cat("nesting is deeper than ", limits_.max_depth, " levels"));
    }
    open_.push_back(place(std::move(json)));
    return true;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  std::string_view what_;
  const char* position_;
  Json root_;
  std::vector<Json*> open_;  // the containers around the current place, outermost first
  Status status_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonLimits& limits, std::string_view what) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return corrupt(str_cat(what, ": the JSON document has ", text.size(),
                           " bytes, more than the limit of ", limits.max_bytes));
  }
  // The parser takes a NUL for the end and skips a byte order mark.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    return corrupt(str_cat(what, ": byte ", nul, ": a NUL byte is not allowed in JSON"));
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    return corrupt(str_cat(what, ": byte 0: a byte order mark is not allowed in JSON"));
  }
  TreeBuilder builder{text, limits, what};
  const bool parsed = nlohmann::json::sax_parse(builder.begin(), builder.end(), &builder);
  if (!parsed) return builder.take_status();
  return builder.take_root();
}

bool is_json(std::string_view text) {
  // The library ends at a zero byte and skips a byte order mark.
  if (text.find('\0') != text.npos || text.starts_with("\xEF\xBB\xBF")) return false;
  return nlohmann::json::accept(text.begin(), text.end());
}

}  // namespace fathom
