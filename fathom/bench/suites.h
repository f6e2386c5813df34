// Suites: lists of kernels that are benchmarked together, and the patterns that choose cases.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

/// "all" (every kernel of the catalogue), "decode", "prefill" (every kernel, cases of that phase),
/// "reference23" (the 23 names of the published benchmark; ones that are not here give rows with
/// status unavailable). Errors: NotFound with the known names.
struct Suite {
  std::string_view name;
  std::string_view phase;            ///< empty: all
  std::vector<std::string> kernels;  ///< our names, or reference names
};

Result<Suite> find_suite(std::string_view name);

std::vector<std::string> suite_names();

/// True if `pattern` matches `text`. A pattern without '*' and '?' matches anywhere in the text;
/// with them it must match the whole: '*' any characters, '?' one.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace fathom
