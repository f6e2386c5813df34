// GGUF, the file format of llama.cpp: enough of it to say what a file is.
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom {

/// The architecture in the first bytes of a GGUF file: its key "general.architecture", such as
/// "deepseek2". Empty where the bytes do not hold it, which stands at the beginning by convention.
std::string gguf_architecture(std::string_view first_bytes);

/// The error of a GGUF file that is named as a model: Unsupported, with its architecture and what
/// is read instead.
Status refuse_gguf(const std::string& path);

}  // namespace fathom
