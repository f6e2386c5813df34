// HMAC-SHA-256 (RFC 2104): a tag that only who has the key can make, and the comparison that tells
// nobody how much of a guess was right.
#pragma once

#include <string_view>

#include "fathom/os/sha256.h"

namespace fathom {

Sha256Digest hmac_sha256(std::string_view key, std::string_view message);

/// Whether two texts are equal. Its time depends on their lengths alone.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace fathom
