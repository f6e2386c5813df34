// Writes JSON. JsonWriter streams a document piece by piece, in the order of the calls; dump_json
// prints a Json value. Output is always valid UTF-8 and reads back as the same values: doubles are
// printed as Python prints them (shortest text that reads back the same, always with a point or an
// exponent), and NaN and infinities, which JSON does not have, as null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/text/json.h"

namespace fathom {

/// How a document is laid out.
enum class JsonStyle {
  kCompact,    ///< {"a":1,"b":[2,3]}
  kPython,     ///< {"a": 1, "b": [2, 3]}, as json.dumps(x)
  kIndented,   ///< two blanks a level, as json.dumps(x, indent=2)
  kIndented4,  ///< four blanks a level, as json.dumps(x, indent=4)
};

/// Whether characters beyond ASCII stand as they are or as \u escapes.
enum class JsonCharset { kUtf8, kAscii };

/// Streams one document into a string. A call that does not fit (a value without a key in an
/// object, an end without a beginning) is a broken invariant.
///
///   JsonWriter writer;
///   writer.begin_object().key("n").integer(3).end_object();
///   writer.take();  // {"n":3}
class JsonWriter {
 public:
  explicit JsonWriter(JsonStyle style = JsonStyle::kCompact,
                      JsonCharset charset = JsonCharset::kUtf8)
      : style_(style), charset_(charset) {}

  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);

  JsonWriter& null();
  JsonWriter& boolean(bool value);
  JsonWriter& integer(int64_t value);
  JsonWriter& unsigned_integer(uint64_t value);
  JsonWriter& number(double value);

  /// A string. Invalid UTF-8 becomes U+FFFD.
  JsonWriter& string(std::string_view value);

  /// A whole value.
  JsonWriter& json(const Json& value);

  /// What was written so far.
  const std::string& text() const { return out_; }

  /// The finished document; all containers are closed. The writer is empty afterwards.
  std::string take();

 private:
  struct Level {
    bool is_object;
    bool is_empty;
    bool has_key;  // a key waits for its value
  };

  void before_value();
  void separate(Level& level);

  bool is_indented() const {
    return style_ == JsonStyle::kIndented || style_ == JsonStyle::kIndented4;
  }

  void new_line();
  JsonWriter& open(bool is_object);
  JsonWriter& close(bool is_object);

  JsonStyle style_;
  JsonCharset charset_;
  std::string out_;
  std::vector<Level> levels_;
};

/// Appends `value` in double quotes, escaped as Python's json.dumps does with ensure_ascii off
/// (kUtf8) or on (kAscii).
void append_json_string(std::string& out, std::string_view value, JsonCharset charset);

/// Appends a double as Python's repr prints it: 1.0, 0.1, 1e-05, 1e+16; null if it is not finite.
void append_json_number(std::string& out, double value);

std::string dump_json(const Json& value,
                      JsonStyle style = JsonStyle::kCompact,
                      JsonCharset charset = JsonCharset::kUtf8);

/// The text that Python's json.dumps(value, ensure_ascii=False) gives, in the order of the keys.
std::string dump_json_like_python(const Json& value);

}  // namespace fathom
