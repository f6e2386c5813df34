#include "fathom/weights/verify/recorded_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <unistd.h>

#include "fathom/base/ascii.h"
#include "fathom/os/file.h"
#include "fathom/os/sha256.h"
#include "fathom/weights/checkpoint/model_folder.h"

namespace fathom {
namespace {

bool is_sha256(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return hex_value(c) >= 0 && c == ascii_lower(c);
         });
}

// Of small files the cache has another digest, which says nothing here.
std::optional<std::string> digest_of_link(const std::string& path) {
  std::array<char, 4096> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  if (length <= 0) return std::nullopt;
  const std::string_view text(target.data(), static_cast<size_t>(length));
  const std::string_view name = base_name(text);
  const bool is_blob = base_name(parent_directory(std::string(text))) == "blobs";
  return is_blob && is_sha256(name) ? std::optional(std::string(name)) : std::nullopt;
}

// Three lines: the commit, the digest that the server named, a time.
std::optional<std::string> digest_of_download(const std::string& directory,
                                              const std::string& name) {
  constexpr int64_t kMaxBytes = 4096;
  const Result<std::string> text =
      read_file(str_cat(directory, "/.cache/huggingface/download/", name, ".metadata"), kMaxBytes);
  if (!text.ok()) return std::nullopt;
  const size_t begin = text->find('\n');
  if (begin == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(*text).substr(begin + 1);
  const std::string_view digest = trimmed(rest.substr(0, rest.find('\n')));
  return is_sha256(digest) ? std::optional(std::string(digest)) : std::nullopt;
}

Status mixed(const Checkpoint& checkpoint, std::string_view what) {
  return corrupt(str_cat(checkpoint.directory(), ": ", what,
                         "; files of two writes are mixed, or one was changed since: copy the "
                         "model again, or delete ",
                         kJournalName, " if the change is meant"));
}

// What the writer of the journal hashed before it had any data.
Result<std::string> digest_of_headers(const Checkpoint& checkpoint) {
  Sha256 hash;
  for (int f = 0; f < static_cast<int>(checkpoint.file_names().size()); ++f) {
    std::string header(static_cast<size_t>(checkpoint.data_begin(f)), '\0');
    FATHOM_TRY(checkpoint.read_file_at(f, 0, std::as_writable_bytes(std::span(header))));
    hash.update(str_cat(checkpoint.file_names()[static_cast<size_t>(f)], '\n', header));
  }
  return to_hex(hash.finish());
}

Result<std::string> digest_of_shard(const Checkpoint& checkpoint, int file) {
  constexpr int64_t kPieceBytes = 1 << 20;
  std::vector<std::byte> piece(static_cast<size_t>(kPieceBytes));
  Sha256 hash;
  for (int64_t at = 0; at < checkpoint.file_bytes(file); at += kPieceBytes) {
    const int64_t size = std::min(kPieceBytes, checkpoint.file_bytes(file) - at);
    const auto bytes = std::span(piece).first(static_cast<size_t>(size));
    FATHOM_TRY(checkpoint.read_file_at(file, at, bytes));
    hash.update(std::span<const std::byte>(bytes));
  }
  return to_hex(hash.finish());
}

std::map<std::string_view, const FileDigest*> shards_of(const Journal& journal) {
  std::map<std::string_view, const FileDigest*> shards;
  for (const FileDigest& file : journal.files) {
    if (file.name.ends_with(kShardSuffix)) shards[file.name] = &file;
  }
  return shards;
}

}  // namespace

Result<std::vector<RecordedFile>> recorded_files(const std::string& directory) {
  FATHOM_ASSIGN(const std::vector<std::string> names, list_directory(directory));
  FATHOM_ASSIGN(const std::optional<Journal> journal, finished_journal(directory, names));
  std::map<std::string, RecordedFile> found;
  for (const std::string& name : names) {
    if (const auto link = digest_of_link(join_path(directory, name))) {
      found[name] = {{name, -1, *link}, "the Hugging Face cache"};
    } else if (const auto download = digest_of_download(directory, name)) {
      found[name] = {{name, -1, *download}, "the download"};
    }
  }
  if (journal) {
    for (const FileDigest& file : journal->files)
      found[file.name] = {file, kJournalName};
  }
  std::vector<RecordedFile> out;
  for (auto& [name, file] : found)
    out.push_back(std::move(file));
  return out;
}

Status check_journalled_shards(const Checkpoint& checkpoint) {
  const Journal* const journal = checkpoint.journal();
  if (journal == nullptr) return {};
  const auto shards = shards_of(*journal);
  const auto names = checkpoint.file_names();
  for (int f = 0; f < static_cast<int>(names.size()); ++f) {
    const std::string& name = names[static_cast<size_t>(f)];
    const auto recorded = shards.find(name);
    if (recorded == shards.end()) {
      return mixed(checkpoint,
                   str_cat("holds ", name, ", which ", kJournalName, " does not record"));
    }
    if (recorded->second->bytes == checkpoint.file_bytes(f)) continue;
    return mixed(checkpoint, str_cat(name, " is ", checkpoint.file_bytes(f), " bytes long, but ",
                                     kJournalName, " records ", recorded->second->bytes));
  }
  for (const auto& [name, file] : shards) {
    if (std::binary_search(names.begin(), names.end(), name)) continue;
    return mixed(checkpoint, str_cat(kJournalName, " records ", name, ", which is not there"));
  }
  FATHOM_ASSIGN(const std::string plan, digest_of_headers(checkpoint));
  if (plan == journal->plan) return {};
  return mixed(checkpoint,
               str_cat("the headers of its shards are not those that ", kJournalName, " records"));
}

Status check_journalled_bytes(const Checkpoint& checkpoint, int64_t most_bytes) {
  const Journal* const journal = checkpoint.journal();
  if (journal == nullptr || checkpoint.total_bytes() > most_bytes) return {};
  const auto shards = shards_of(*journal);
  for (int f = 0; f < static_cast<int>(checkpoint.file_names().size()); ++f) {
    const std::string& name = checkpoint.file_names()[static_cast<size_t>(f)];
    FATHOM_ASSIGN(const std::string found, digest_of_shard(checkpoint, f));
    const auto recorded = shards.find(name);
    if (recorded == shards.end() || recorded->second->sha256 == found) continue;
    return mixed(checkpoint, str_cat(name, " has another SHA-256 than ", kJournalName, " records"));
  }
  return {};
}

}  // namespace fathom
