// What is known of the bytes of a model's files: who wrote or downloaded them may have left their
// SHA-256 beside them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/export/journal.h"

namespace fathom {

/// A file whose SHA-256 somebody recorded.
struct RecordedFile {
  FileDigest file;               ///< bytes -1: not recorded
  std::string_view recorded_by;  ///< "fathom-journal.jsonl", "the Hugging Face cache", ...
};

/// The files of a directory that are recorded, by name: those of the journal of `fathom quantize`
/// and `fathom synth`; links into a Hugging Face cache, whose blobs of large files are named by
/// their SHA-256; files that `hf download --local-dir` noted in .cache/huggingface/download. The
/// first of these counts. Errors: those of finished_journal and of listing the directory.
Result<std::vector<RecordedFile>> recorded_files(const std::string& directory);

/// Whether the shards are those of the journal beside them, as far as names, lengths and headers
/// tell: neither one of another write nor one too many. Without a journal they are. Errors: Corrupt
/// naming what differs; those of reading.
Status check_journalled_shards(const Checkpoint& checkpoint);

/// Hashes the shards that the journal records where all of them have at most `most_bytes`, so that
/// a small model costs no one a wait. Errors: Corrupt naming the shard; those of reading.
Status check_journalled_bytes(const Checkpoint& checkpoint, int64_t most_bytes);

}  // namespace fathom
