// Text that a command takes: from a flag, a file, or standard input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"

namespace fathom::cli {

inline constexpr int64_t kMaxInputBytes = 64ll << 20;

/// The whole of standard input. Errors: InvalidArgument above kMaxInputBytes, Io.
Result<std::string> read_standard_input();

/// The errors of whatever reads standard input: more than kMaxInputBytes, and errno of a read.
Status standard_input_too_long();
Status standard_input_error(int error);

/// The whole of a file, "-" for standard input; a pipe or a device (/dev/stdin, <(command)) is read
/// to its end. Errors: those of read_file and read_standard_input.
Result<std::string> read_text(const std::string& path);

/// The same without the newline at its end, one at most: editors and echo put it there.
Result<std::string> read_prompt_text(const std::string& path);

/// "1, 2 3" or "[1,2,3]" as ids. Errors: InvalidArgument naming the word and its place.
Result<std::vector<int32_t>> parse_ids(std::string_view text);

/// Ids as a JSON list.
std::string format_ids(const std::vector<int32_t>& ids);

}  // namespace fathom::cli
