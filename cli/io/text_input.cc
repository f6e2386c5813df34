#include "cli/io/text_input.h"

#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <unistd.h>

#include "fathom/os/file.h"

namespace fathom::cli {

Result<std::string> read_standard_input() {
  std::string text;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got == 0) return text;
    if (got < 0) return standard_input_error(errno);
    text.append(buffer.data(), static_cast<size_t>(got));
    if (static_cast<int64_t>(text.size()) > kMaxInputBytes) return standard_input_too_long();
  }
}

Status standard_input_too_long() {
  return invalid_argument(str_cat("standard input is longer than ", kMaxInputBytes, " bytes"));
}

Status standard_input_error(int error) {
  // Io whatever the number: the other codes of errno_status speak of files.
  return io_error(errno_status("read", "standard input", error).message());
}

Result<std::string> read_text(const std::string& path) {
  if (path == "-") return read_standard_input();
  return read_file(path, kMaxInputBytes);
}

Result<std::vector<int32_t>> parse_ids(std::string_view text) {
  size_t at = 0;
  const auto skip = [&] {
    while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])))
      ++at;
    return at < text.size();
  };
  const auto refused = [&](std::string_view expected) {
    const std::string found = at < text.size()
                                  ? str_cat("byte ", at, " is '", text.substr(at, 12), "'")
                                  : str_cat("the list ends at byte ", at);
    return invalid_argument(str_cat("ids: ", found, ", expected ", expected));
  };
  constexpr std::string_view kId = "a token id such as 42";

  std::vector<int32_t> ids;
  const bool bracket = skip() && text[at] == '[';
  if (bracket) ++at;
  bool more = skip() && !(bracket && text[at] == ']');
  while (more) {
    int32_t id = 0;
    const char* begin = text.data() + at;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), id);
    if (error != std::errc{}) return refused(kId);
    ids.push_back(id);
    at += static_cast<size_t>(end - begin);
    const size_t behind = at;
    const bool comma = skip() && text[at] == ',';
    if (comma) {
      ++at;
      if (!skip()) return refused(kId);
    }
    const bool ends = at == text.size() || text[at] == ']';
    if (!comma && !ends && at == behind) return refused("a comma or a space behind an id");
    more = comma || !ends;
  }
  if (bracket) {
    if (at == text.size()) return refused("]");
    ++at;
  }
  return skip() ? Result<std::vector<int32_t>>(refused("nothing behind the ids")) : ids;
}

std::string format_ids(const std::vector<int32_t>& ids) {
  std::string out = "[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ", ";
    str_append(out, ids[i]);
  }
  return out += "]";
}

}  // namespace fathom::cli
