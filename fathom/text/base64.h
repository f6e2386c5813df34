// Base64 (RFC 4648, section 4): with padding, without line ends.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fathom {

std::string to_base64(std::string_view bytes);

/// The bytes; nothing if the text is not what to_base64 makes of some bytes.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace fathom
