// A checkpoint in the Hugging Face layout: one directory whose safetensors shards are presented as
// one map from tensor name to tensor. The headers of the shards are the truth; the index is a hint
// that says which shards must be there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/weights/checkpoint/safetensors.h"
#include "fathom/weights/export/journal.h"

namespace fathom {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kSingleShardName = "model.safetensors";
inline constexpr int64_t kMaxTensors = 1'000'000;

struct CheckpointOptions {
  Symlinks symlinks = Symlinks::kFollow;
  int max_shards = 4096;  ///< at most 65,536
};

/// A tensor and the shard it is in.
struct TensorRef {
  int file = 0;  ///< index into Checkpoint::file_names()
  TensorEntry entry;
};

/// When a file was last changed, since the beginning of 1970.
struct FileTime {
  int64_t seconds = 0;
  int64_t nanoseconds = 0;
};

/// Open shards. Move-only. Reading is thread-safe.
class Checkpoint {
 public:
  Checkpoint() = default;
  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Opens a directory. Taken are the shards that model.safetensors.index.json names, which must
  /// all exist, and any other model*.safetensors beside them (with a warning); without an index, a
  /// single model.safetensors.
  /// Errors: NotFound without any shard; Unsupported for a directory of pickle files; Corrupt for
  /// a write that did not finish (a .partial file, an unfinished journal), for shards without an
  /// index, for a malformed index or shard, for a tensor that is in two shards, and for shards that
  /// are not those of the journal beside them (check_journalled_shards).
  static Result<Checkpoint> open(const std::string& directory,
                                 const CheckpointOptions& options = {});

  /// One file as a checkpoint of its own.
  static Result<Checkpoint> open_file(const std::string& path,
                                      Symlinks symlinks = Symlinks::kFollow);

  /// The tensor of that name, or null. Valid as long as the checkpoint, also when it moves.
  const TensorRef* find(std::string_view name) const;

  /// As find(), or NotFound with the name and the directory.
  Result<const TensorRef*> get(std::string_view name) const;

  /// All tensors, by shard name and then in the order of their data.
  std::span<const TensorRef> tensors() const { return tensors_; }

  /// Reads a whole tensor; dst has exactly its bytes.
  Status read(const TensorRef& tensor, std::span<std::byte> dst) const;

  /// Reads dst.size() bytes from `offset` within the tensor.
  Status read_at(const TensorRef& tensor, int64_t offset, std::span<std::byte> dst) const;

  /// "DIR/model-00002-of-00004.safetensors: tensor "x" at byte 1024", the beginning of a message
  /// about its data or its description.
  std::string locate(const TensorRef& tensor) const;

  /// The same without the place in the file.
  std::string describe(const TensorRef& tensor) const;

  const std::string& directory() const { return directory_; }

  /// Shards, sorted by name.
  std::span<const std::string> file_names() const { return file_names_; }

  int64_t file_bytes(int file) const { return files_[static_cast<size_t>(file)].size(); }

  /// Where the data of a shard begins, behind its header.
  int64_t data_begin(int file) const { return data_begins_[static_cast<size_t>(file)]; }

  /// Reads dst.size() bytes of a shard, its header included.
  Status read_file_at(int file, int64_t offset, std::span<std::byte> dst) const {
    return files_[static_cast<size_t>(file)].read_at(offset, dst);
  }

  /// Errors: Io.
  Result<FileTime> last_change(int file) const;

  /// The journal beside the shards, of a write that finished; null without one.
  const Journal* journal() const { return journal_ ? &*journal_ : nullptr; }

  /// Bytes of all tensors.
  int64_t total_bytes() const { return total_bytes_; }

  /// What was odd but not wrong; each was also logged.
  std::span<const std::string> warnings() const { return warnings_; }

  /// Those of the warnings that say what the index has wrong: other readers believe it.
  std::span<const std::string> index_faults() const { return index_faults_; }

 private:
  Status add_file(const std::string& name, Symlinks symlinks);
  Status index_tensors();
  void warn(std::string text);
  void compare_with_index(const std::vector<std::pair<std::string, std::string>>& weight_map);

  std::string directory_;
  std::optional<Journal> journal_;
  std::vector<std::string> file_names_;
  std::vector<File> files_;
  std::vector<int64_t> data_begins_;
  std::vector<TensorRef> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views of the names in tensors_
  std::vector<std::string> warnings_;
  std::vector<std::string> index_faults_;
  int64_t total_bytes_ = 0;
};

}  // namespace fathom
