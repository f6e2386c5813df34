#include "fathom/weights/export/journal.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"
#include "fathom/os/sha256.h"
#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

constexpr int64_t kMaxJournalBytes = 64ll << 20;
constexpr int64_t kVersion = 1;

bool is_digest(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

const std::string* find_string(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_string() ? &value->as_string() : nullptr;
}

const Json* find_integer(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_int() && value->as_int() >= 0 ? value : nullptr;
}

// Takes one line into the journal; says what was expected if it does not fit.
std::string_view take_line(const Json& json, bool is_first, Journal& journal) {
  if (is_first) {
    const Json* version = find_integer(json, "journal");
    const std::string* source = find_string(json, "source");
    const std::string* options = find_string(json, "options");
    const std::string* plan = find_string(json, "plan");
    if (version == nullptr || version->as_int() != kVersion || !source || !options || !plan ||
        !is_digest(*plan)) {
      return "journal version 1 with source, options and plan";
    }
    journal.plan = *plan;
    journal.source = *source;
    journal.options = *options;
    return {};
  }
  if (journal.finished) return "nothing after the last line";
  if (const std::string* name = find_string(json, "file"); name != nullptr) {
    const Json* bytes = find_integer(json, "bytes");
    const std::string* digest = find_string(json, "sha256");
    if (!is_plain_file_name(*name) || bytes == nullptr || !digest || !is_digest(*digest)) {
      return "a plain file name, bytes and sha256";
    }
    journal.files.push_back({*name, bytes->as_int(), *digest});
    return {};
  }
  const Json* finished = json.find("finished");
  const Json* count = find_integer(json, "files");
  if (finished == nullptr || !finished->is_bool() || !finished->as_bool() || count == nullptr ||
      count->as_int() != static_cast<int64_t>(journal.files.size())) {
    return "a file, or the end with the number of files before it";
  }
  journal.finished = true;
  return {};
}

}  // namespace

Result<Journal> parse_journal(std::string_view text, std::string_view what) {
  Journal journal;
  const JsonLimits limits{.max_depth = 2, .max_bytes = 1 << 20};
  for (int64_t line_number = 1;; ++line_number) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return journal;
    const std::string line_name = str_cat(what, ": line ", line_number);
    FATHOM_ASSIGN(const Json json, parse_json(text.substr(0, end), limits, line_name));
    const std::string_view expected = take_line(json, line_number == 1, journal);
    if (!expected.empty()) return corrupt(str_cat(line_name, ": expected ", expected));
    text.remove_prefix(end + 1);
    journal.valid_bytes += static_cast<int64_t>(end) + 1;
  }
}

Result<Journal> read_journal(const std::string& directory) {
  const std::string path = join_path(directory, kJournalName);
  FATHOM_ASSIGN(const std::string text, read_file(path, kMaxJournalBytes));
  return parse_journal(text, path);
}

Result<FileDigest> digest_file(const std::string& directory, std::string_view name) {
  constexpr int64_t kPieceBytes = 1 << 20;
  FATHOM_ASSIGN(const File file, File::open(join_path(directory, name)));
  std::vector<std::byte> piece(static_cast<size_t>(kPieceBytes));
  Sha256 hash;
  for (int64_t offset = 0; offset < file.size(); offset += kPieceBytes) {
    const auto size = static_cast<size_t>(std::min(kPieceBytes, file.size() - offset));
    FATHOM_TRY(file.read_at(offset, std::span(piece).first(size)));
    hash.update(std::span<const std::byte>(piece).first(size));
  }
  return FileDigest{std::string(name), file.size(), to_hex(hash.finish())};
}

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name.front() == '.') return false;
  if (name.find("..") != std::string_view::npos) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

std::string journal_first_line(std::string_view source,
                               std::string_view options,
                               std::string_view plan) {
  JsonWriter writer;
  writer.begin_object().key("journal").integer(kVersion);
  writer.key("source").string(source).key("options").string(options);
  writer.key("plan").string(plan).end_object();
  return writer.take();
}

std::string journal_file_line(const FileDigest& file) {
  JsonWriter writer;
  writer.begin_object().key("file").string(file.name).key("bytes").integer(file.bytes);
  writer.key("sha256").string(file.sha256).end_object();
  return writer.take();
}

std::string journal_last_line(int64_t num_files) {
  JsonWriter writer;
  writer.begin_object().key("finished").boolean(true).key("files").integer(num_files).end_object();
  return writer.take();
}

}  // namespace fathom
