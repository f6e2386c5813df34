// From what a user types as MODEL to the directory of a checkpoint.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom {

/// Where the MODEL argument leads: an existing directory as it stands, or ORG/NAME[@REV] in one of
/// the Hugging Face caches, whose layout is ROOT/models--ORG--NAME/{refs/REV, snapshots/COMMIT}.
/// REV is a branch, a tag or a whole commit; "main" without one. Nothing is downloaded. Errors:
/// NotFound with the places looked at and the command that downloads, and for a text that is
/// neither; Corrupt for a file; Unsupported for a GGUF file, with its architecture.
Result<std::string> resolve_model(std::string_view model, std::span<const std::string> cache_roots);

}  // namespace fathom
