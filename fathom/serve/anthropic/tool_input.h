// The `input` of a tool_use block from the text of a call's arguments.
#pragma once

#include <string_view>

#include "fathom/text/json.h"

namespace fathom::serve {

/// The value of the text. Of a text that was cut off: its containers closed behind the last whole
/// member or item, as clients read a stream of it. An empty object where nothing can be read.
Json tool_input(std::string_view arguments);

}  // namespace fathom::serve
