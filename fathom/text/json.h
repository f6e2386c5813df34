// A strict, bounded JSON reader. The document is a tree of Json values; objects keep their order.
//
// Refused, with the byte offset: duplicate keys at any level, depth or sizes beyond the limits,
// invalid UTF-8, NaN and infinities, anything but white space after the document. Integers stay
// integers: 1 is an integer, 1.0 and 1e3 are not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

class Json;
using JsonMember = std::pair<std::string, Json>;

/// What a document may have at most.
struct JsonLimits {
  int max_depth = 64;
  int64_t max_bytes = 4ll << 20;          ///< of the whole document
  int64_t max_string_bytes = 16ll << 20;  ///< of one string
  int64_t max_keys = 1'000'000;           ///< of one object

  /// What happens to an integer beyond uint64_t: an error, or the nearest double (files of the
  /// Hugging Face world hold model_max_length = 10^30).
  enum class BigInteger { kRefuse, kRound };
  BigInteger big_integer = BigInteger::kRefuse;
};

/// One JSON value. Copies are deep; a value of 16 bytes keeps a hostile document from growing much
/// in memory. A moved-from value is null.
class Json {
 public:
  enum class Kind { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };

  Json() = default;
  ~Json();
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  static Json boolean(bool value);
  static Json integer(int64_t value);
  static Json unsigned_integer(uint64_t value);  ///< only for values beyond int64_t
  static Json number(double value);
  static Json string(std::string value);
  static Json array(std::vector<Json> items = {});
  static Json object(std::vector<JsonMember> members = {});

  Kind kind() const { return kind_; }

  /// The kind in words: "an object", "an integer".
  std::string_view kind_name() const;

  bool is_null() const { return kind_ == Kind::kNull; }

  bool is_bool() const { return kind_ == Kind::kBool; }

  bool is_int() const { return kind_ == Kind::kInt; }  ///< fits int64_t

  bool is_number() const {
    return kind_ == Kind::kInt || kind_ == Kind::kUint || kind_ == Kind::kDouble;
  }

  bool is_string() const { return kind_ == Kind::kString; }

  bool is_array() const { return kind_ == Kind::kArray; }

  bool is_object() const { return kind_ == Kind::kObject; }

  // Accessors of a value whose kind was checked; a wrong kind is a broken invariant.
  bool as_bool() const;
  int64_t as_int() const;
  uint64_t as_uint() const;  ///< kUint, or kInt that is not negative
  double as_double() const;  ///< any number
  const std::string& as_string() const;
  const std::vector<Json>& items() const;
  const std::vector<JsonMember>& members() const;
  std::vector<Json>& items();
  std::vector<JsonMember>& members();

  /// The member of this object, or null if there is none or this is no object. Linear in the
  /// number of members; iterate over members() where there are many.
  const Json* find(std::string_view key) const;

  /// Equal kinds and values; the order of members counts, 1 and 1.0 differ.
  friend bool operator==(const Json& a, const Json& b);

 private:
  void destroy();

  Kind kind_ = Kind::kNull;

  union {
    bool bool_;
    int64_t int_ = 0;
    uint64_t uint_;
    double double_;
    // Owned by this value; kind_ says which one is there.
    std::string* string_;
    std::vector<Json>* items_;
    std::vector<JsonMember>* members_;
  };
};

/// Parses one document. `what` names it in messages ("config.json"). Errors: Corrupt, with the byte
/// offset, what was found and what was expected.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits, std::string_view what);

/// Whether the text is one JSON document by RFC 8259, of any depth; duplicate keys are allowed, and
/// numbers beyond double are not.
bool is_json(std::string_view text);

}  // namespace fathom
