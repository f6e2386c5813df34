// A request for a grammar as one format (format_parts.h), checked against the limits.
#pragma once

#include <string>

#include "fathom/base/status.h"
#include "fathom/grammar/call_markers.h"
#include "fathom/grammar/grammar.h"
#include "fathom/text/json.h"

namespace fathom {

/// The structural tag of a spec. Behind reasoning, up to two line ends may come first. Errors:
/// InvalidArgument `invalid_schema: ...` and `grammar_too_complex: ...`; where a tool is to blame,
/// what follows the code begins with "tool 'NAME'".
Result<Json> spec_format(const GrammarSpec& spec,
                         const CallMarkers& markers,
                         const GrammarLimits& limits);

/// All of a spec as text: equal specs, and no others, have the same.
std::string spec_key(const GrammarSpec& spec);

}  // namespace fathom
