// "Did you mean ...?": the names closest to what was typed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fathom {

/// Levenshtein distance: insertions, deletions and substitutions of bytes.
size_t edit_distance(std::string_view a, std::string_view b);

/// At most `limit` of the names, nearest first (ties by name); none that is more than half a word
/// away.
std::vector<std::string> near_names(std::string_view typed,
                                    std::vector<std::string> names,
                                    size_t limit = 3);

/// A hint (base/hint.h) for near names, "did you mean a or b" and `end`; nothing without any.
std::string did_you_mean(const std::vector<std::string>& near, std::string_view end = "?");

}  // namespace fathom
