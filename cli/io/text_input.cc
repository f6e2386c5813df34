#include "cli/io/text_input.h"

#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "fathom/base/hint.h"
#include "fathom/os/file.h"

namespace fathom::cli {

namespace {

constexpr std::string_view kSplit = "give it in parts";

// Everything until the end. `too_long` and `failed` are the errors.
template <class TooLong, class Failed>
Result<std::string> read_to_end(int fd, const TooLong& too_long, const Failed& failed) {
  std::string text;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) return text;
    if (got < 0) return failed(errno);
    text.append(buffer.data(), static_cast<size_t>(got));
    if (static_cast<int64_t>(text.size()) > kMaxInputBytes) return too_long();
  }
}

// A pipe, a terminal, a device: what has no size before it is read.
Result<std::string> read_stream(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno_status("open", path, errno);
  Result<std::string> text = read_to_end(
      fd,
      [&] {
        return with_hint(corrupt(str_cat(path, ": is longer than ", kMaxInputBytes, " bytes")),
                         kSplit);
      },
      [&](int error) { return errno_status("read", path, error); });
  ::close(fd);
  return text;
}

}  // namespace

Result<std::string> read_standard_input() {
  return read_to_end(STDIN_FILENO, standard_input_too_long, standard_input_error);
}

Status standard_input_too_long() {
  return with_hint(
      invalid_argument(str_cat("standard input is longer than ", kMaxInputBytes, " bytes")),
      kSplit);
}

Status standard_input_error(int error) {
  // Io whatever the number: the other codes of errno_status speak of files.
  Status status = io_error(errno_status("read", "standard input", error).message());
  if (error != EBADF && error != EISDIR) return status;
  return with_hint_instead(std::move(status), "`< FILE` gives a file, `< /dev/null` nothing");
}

Result<std::string> read_text(const std::string& path) {
  if (path == "-") return read_standard_input();
  if (path_kind(path) == PathKind::kOther) return read_stream(path);
  return read_file(path, kMaxInputBytes);
}

Result<std::string> read_prompt_text(const std::string& path) {
  FATHOM_ASSIGN(std::string text, read_text(path));
  if (text.ends_with('\n')) text.resize(text.size() - (text.ends_with("\r\n") ? 2 : 1));
  return text;
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
