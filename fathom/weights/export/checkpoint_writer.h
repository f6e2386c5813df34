// Writes a checkpoint in the Hugging Face layout so that it can be killed at any instant: what is
// there afterwards is nothing, a resumable part that the loader refuses, or the whole.
//
// The plan of all tensors is known first, so shards, names and offsets are fixed before any data
// exists, and the bytes are the same whether the write ran through or was resumed. Each shard goes
// to "name.partial", is synced and renamed, and is then entered into the journal (journal.h) with
// its checksum; the index comes last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/sha256.h"
#include "fathom/weights/checkpoint/safetensors.h"

namespace fathom {

/// Takes the data of one tensor, from its first byte to its last, in pieces of any size.
class TensorSink {
 public:
  TensorSink(AtomicFile& file, Sha256& hash, int64_t bytes)
      : file_(file), hash_(hash), left_(bytes) {}

  /// Errors: Io; InvalidArgument for more bytes than the tensor has.
  Status append(std::span<const std::byte> data);

  int64_t bytes_left() const { return left_; }

 private:
  AtomicFile& file_;
  Sha256& hash_;
  int64_t left_;
};

/// A tensor to be written; begin and end are ignored.
using TensorPlan = std::vector<TensorEntry>;

/// Produces the data of plan[tensor]. Called once for each tensor that is not on disk yet, in the
/// order of the files.
using TensorProducer = std::function<Status(size_t tensor, TensorSink& sink)>;

struct CheckpointWriterOptions {
  int64_t max_shard_bytes = 5'000'000'000;  ///< of data; one larger tensor makes a shard of its own
  std::string source_digest;                ///< of the input; a resumed write must have the same
  std::string options;                      ///< what was asked for, as text; the same
  std::string source_directory;  ///< refused as the target; empty if there is no input directory
  std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pt"}};

  /// Other files of the checkpoint, name and content (config.json, tokenizer.json): written after
  /// the shards, before the index.
  std::vector<std::pair<std::string, std::string>> side_files;
};

struct WriteReport {
  int64_t num_shards = 0;
  int64_t reused_shards = 0;  ///< found intact from a write before
  int64_t data_bytes = 0;     ///< of all tensors
};

/// Writes all tensors of the plan to `directory`, which is made if it is not there, as
/// model.safetensors or as model-00001-of-NNNNN.safetensors with their index. A write with the same
/// source digest and options that did not finish is resumed: finished shards are hashed again and
/// kept if they are intact.
/// Errors: InvalidArgument for a plan with bad names or sizes, for a target that is the source, and
/// for a directory that holds a checkpoint of another origin; Io for everything the system refuses,
/// after which no partial file is left; what `source` returns, likewise.
Result<WriteReport> write_checkpoint(const std::string& directory,
                                     const TensorPlan& plan,
                                     const CheckpointWriterOptions& options,
                                     const TensorProducer& source);

}  // namespace fathom
