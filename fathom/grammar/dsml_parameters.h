// The parameters of one call in DSML as a format (call_format.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/grammar/grammar.h"
#include "fathom/grammar/schema_check.h"
#include "fathom/text/json.h"

namespace fathom {

/// Whether a name of a tool or parameter can stand in a tag and in a line of its own: 1 to 256
/// bytes, none of them a blank, a quote, a control character or one of < > { } `.
bool is_plain_name(std::string_view name);

/// What stands between the tags of a call. `dsml`: the token of ｜DSML｜, if it is one. Errors:
/// InvalidArgument, naming the tool and what of its schema cannot be written as parameters.
Result<Json> dsml_parameters_format(const ToolDefinition& tool,
                                    ToolGrammar level,
                                    const SchemaLimits& limits,
                                    std::optional<int32_t> dsml);

}  // namespace fathom
