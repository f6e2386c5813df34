// Where a MODEL that is no path is looked for.
#pragma once

#include <string>
#include <vector>

namespace fathom::cli {

/// Directories of models that came with the program, each under its name: share/fathom/models
/// beside the bin/ of an installation, models/ of the source tree above build/PRESET. Those that
/// are there.
std::vector<std::string> shipped_model_roots();

/// The caches of Hugging Face, whether they are there or not.
std::vector<std::string> hub_cache_roots();

/// Every name that MODEL may be on this machine, sorted: those of shipped models, and ORG/NAME of
/// the caches.
std::vector<std::string> known_models();

}  // namespace fathom::cli
