// What a JSON schema may say here. The grammar library ignores keywords that it does not enforce; a
// client that asks for a schema counts on it, so such a schema is refused by name.
//
// Enforced: type, properties, required, additionalProperties, unevaluatedProperties, minProperties,
// maxProperties, propertyNames, patternProperties (one, without properties), items, prefixItems,
// unevaluatedItems, minItems, maxItems, minLength, maxLength, pattern, format (those that the
// library knows), minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (integers),
// const, enum, anyOf, oneOf (branches that exclude each other), allOf (one branch), $ref within
// the schema. Properties come in the order of the schema; an object is closed where the schema says
// so, not before.
//
// Refused: not, if, then, else, dependentRequired, dependentSchemas, dependencies, contains,
// minContains, maxContains, uniqueItems, additionalItems, $dynamicRef, $recursiveRef; allOf with
// more branches; what stands beside $ref, anyOf, oneOf, allOf, const or enum and would be
// ignored; and keywords of a type that is not said.
//
// Other members say nothing of values (title, description, default, examples, unknown formats and
// keywords) and are left out.
#pragma once

#include <cstdint>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/text/json.h"

namespace fathom {

struct SchemaLimits {
  int64_t max_bytes;          ///< of the schema as text
  int64_t max_depth;          ///< of schemas within schemas
  int64_t max_pattern_bytes;  ///< of one pattern
};

/// How many schemas lie within each other, this one included; true and false are none. What holds
/// schemas counts whether it is enforced or not.
int64_t schema_depth(const Json& schema);

/// Refuses an expression, or a grammar, that counts further than the library can quickly. Errors:
/// InvalidArgument `grammar_too_complex: ...`.
Status check_repetitions(std::string_view pattern, std::string_view what);

/// Lengths of strings in a checked schema, which has a pattern in their place. The library does not
/// know these words.
inline constexpr std::string_view kCheckedMinLength = "fathom_minLength";
inline constexpr std::string_view kCheckedMaxLength = "fathom_maxLength";

/// The schema without annotations, and with additionalProperties and items wherever they are
/// implied. `what` stands before paths in messages. Errors: InvalidArgument `invalid_schema: ...`
/// and `grammar_too_complex: ...`.
Result<Json> checked_schema(const Json& schema, const SchemaLimits& limits, std::string_view what);

}  // namespace fathom
