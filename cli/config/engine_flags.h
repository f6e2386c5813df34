// Flags of the engine, made from the rows of its table (api/options.h).
#pragma once

#include <initializer_list>
#include <string_view>

#include "fathom/api/options.h"

namespace CLI {
class App;
}

namespace fathom::cli {

/// Adds a flag for each option of these groups that counts in this use, `except` left out; each
/// group has its heading in the help. `options` is filled, and must live as long as `app`.
void add_engine_flags(CLI::App& app,
                      EngineOptions& options,
                      OptionUse use,
                      std::initializer_list<OptionGroup> groups,
                      std::initializer_list<std::string_view> except = {});

}  // namespace fathom::cli
