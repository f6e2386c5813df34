// The tools of a responses request.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "fathom/serve/fields.h"
#include "fathom/serve/prompt/answer_shape.h"

namespace fathom::serve {

struct ResponseTools {
  std::vector<ToolDefinition> tools;  ///< custom ones as functions with one text, `input`
  std::set<std::string> custom;       ///< names of those
  ToolUse use;
};

/// Reads `tools`, `tool_choice` (none, auto, required, or an object of type function, custom or
/// allowed_tools) and `parallel_tool_calls`. Tools of types that are not known here (web_search,
/// namespace, image_generation ...) are left out with one line of the log.
ResponseTools read_response_tools(Fields& fields);

}  // namespace fathom::serve
