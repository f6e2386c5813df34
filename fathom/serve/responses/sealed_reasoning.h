// Reasoning that clients carry for the server: some (Codex) send a reasoning item back without its
// content, but with its encrypted_content. The text is in it as base64; it is no secret, as the
// item shows it too.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fathom::serve {

/// The encrypted_content of a reasoning item with this text.
std::string seal_reasoning(std::string_view text);

/// The text in it; nothing if it is another server's.
std::optional<std::string> open_reasoning(std::string_view sealed);

}  // namespace fathom::serve
