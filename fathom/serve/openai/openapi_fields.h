// The fields of request bodies, as the OpenAPI document lists them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace fathom::serve {

struct ApiField {
  enum class Kind {
    kBool,
    kInteger,
    kNumber,
    kText,
    kTexts,  ///< a string or an array of them
    kArray,
    kObject,
    kAny,
  };
  std::string_view name;
  Kind kind = Kind::kAny;
  std::string_view about{};
  std::optional<double> low{};
  std::optional<double> high{};
  bool above_low = false;  ///< `low` itself is refused
  int64_t max_size = 0;    ///< bytes of a text, items of an array; 0: no limit of its own
  bool required = false;
};

struct ApiSchema {
  std::string_view name;
  std::span<const ApiField> fields;
};

/// All schemas that routes refer to, and those of errors.
std::span<const ApiSchema> api_schemas();

}  // namespace fathom::serve
