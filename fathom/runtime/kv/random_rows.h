// Rows of a cache that nobody has computed: for benchmarks of long contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fathom/models/cache_layout.h"

namespace fathom {

/// `pages` pages of a group, one behind the other: numbers of magnitude 1 to 2 with random signs
/// and mantissas in every field, scales positive, codes of four bits random. Bytes between fields
/// are 0.
std::vector<std::byte> random_pages(const CacheGroup& group, int64_t pages, uint64_t seed);

}  // namespace fathom
