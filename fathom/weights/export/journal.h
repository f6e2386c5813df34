// The journal of a checkpoint being written: one JSON line per fact, synced before the next step
// begins. It lets a killed writer resume and a reader refuse what is not finished; afterwards its
// checksums are what `fathom verify` compares the files with.
//
//   {"journal":1,"source":"<digest of the input>","options":"<what was asked
//   for>","plan":"9a01..."}
//   {"file":"model-00001-of-00002.safetensors","bytes":4999999488,"sha256":"ba78..."}
//   ...
//   {"finished":true,"files":5}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

inline constexpr std::string_view kJournalName = "fathom-journal.jsonl";

/// A file whose bytes are known.
struct FileDigest {
  std::string name;  ///< within the directory
  int64_t bytes = 0;
  std::string sha256;  ///< 64 hexadecimal digits

  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

struct Journal {
  std::string source;
  std::string options;
  std::string plan;               ///< digest of shard names and headers, 64 hexadecimal digits
  std::vector<FileDigest> files;  ///< in the order they were finished
  bool finished = false;
  int64_t valid_bytes = 0;  ///< of complete lines; a torn last line is not part of it
};

/// Parses a journal. A last line without a newline is what a killed writer leaves and is dropped.
/// Without any complete line, source and options are empty. Errors: Corrupt, with the line.
Result<Journal> parse_journal(std::string_view text, std::string_view what);

/// The journal of a directory. Errors: NotFound when there is none, as parse_journal otherwise.
Result<Journal> read_journal(const std::string& directory);

/// Length and checksum of directory/name, read in pieces.
Result<FileDigest> digest_file(const std::string& directory, std::string_view name);

/// Whether a file's name is one plain component that a journal or an index may name: letters,
/// digits, '.', '_', '-', not starting with '.', no "..".
bool is_plain_file_name(std::string_view name);

// The lines, without the newline.
std::string journal_first_line(std::string_view source,
                               std::string_view options,
                               std::string_view plan);
std::string journal_file_line(const FileDigest& file);
std::string journal_last_line(int64_t num_files);

}  // namespace fathom
