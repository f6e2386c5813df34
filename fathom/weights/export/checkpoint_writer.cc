#include "fathom/weights/export/checkpoint_writer.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <sys/stat.h>

#include "fathom/base/fail_point.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/export/journal.h"
#include "fathom/weights/export/shard_plan.h"

namespace fathom {
namespace {

bool is_same_directory(const std::string& a, const std::string& b) {
  struct stat first {};

  struct stat second {};

  return stat(a.c_str(), &first) == 0 && stat(b.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

Status check_side_files(const CheckpointWriterOptions& options) {
  std::vector<std::string> names;
  for (const auto& [name, content] : options.side_files) {
    const bool is_taken = name == kIndexName || name == kJournalName ||
                          name.ends_with(kPartialSuffix) || name.ends_with(".safetensors") ||
                          std::find(names.begin(), names.end(), name) != names.end();
    if (!is_plain_file_name(name) || is_taken) {
      return invalid_argument(
          str_cat("file name ", quoted(name), ", expected a plain name that no other file has"));
    }
    names.push_back(name);
  }
  return {};
}

// One write, from the lock to the last line of the journal.
class Writer {
 public:
  Writer(const std::string& directory,
         const TensorPlan& plan,
         const CheckpointWriterOptions& options,
         const TensorProducer& source)
      : directory_(directory), plan_(plan), options_(options), source_(source) {}

  Result<WriteReport> write() {
    FATHOM_TRY(check_side_files(options_));
    FATHOM_ASSIGN(shards_, plan_shards(plan_, options_.max_shard_bytes, options_.metadata));
    if (!options_.source_directory.empty() &&
        is_same_directory(directory_, options_.source_directory)) {
      return invalid_argument(str_cat("the output ", directory_, " is the input"));
    }
    FATHOM_TRY(make_directories(directory_));
    FATHOM_ASSIGN(const DirectoryLock lock, DirectoryLock::acquire(directory_));
    FATHOM_TRY(resume());
    FATHOM_TRY(check_space());
    for (const ShardPlan& shard : shards_)
      FATHOM_TRY(finish_shard(shard));
    for (const auto& [name, content] : options_.side_files) {
      FATHOM_TRY(finish_text(name, content));
    }
    if (shards_.size() > 1) {
      FATHOM_TRY(finish_text(std::string(kIndexName), format_index(plan_, shards_)));
    }
    const auto num_files = static_cast<int64_t>(journalled_.files.size());
    if (!journalled_.finished) FATHOM_TRY(journal_.append_line(journal_last_line(num_files)));
    return report_;
  }

 private:
  // Reads what an earlier write left, refuses a foreign one, and opens the journal.
  Status resume() {
    FATHOM_ASSIGN(const std::vector<std::string> names, list_directory(directory_));
    const bool has_journal = std::binary_search(names.begin(), names.end(), kJournalName);
    if (has_journal) {
      FATHOM_ASSIGN(journalled_, read_journal(directory_));
    } else {
      FATHOM_TRY(refuse_foreign(names));
    }
    const bool is_new = journalled_.valid_bytes == 0;
    const std::string plan = to_hex(plan_digest());
    if (!is_new && (journalled_.source != options_.source_digest ||
                    journalled_.options != options_.options || journalled_.plan != plan)) {
      const std::string other =
          journalled_.options != options_.options
              ? str_cat("with other options (", quoted(journalled_.options), ", now ",
                        quoted(options_.options), ")")
              : std::string(journalled_.source != options_.source_digest
                                ? "of another source, or of this one before its files changed"
                                : "of other shards");
      return invalid_argument(str_cat(directory_, ": holds a write ", other,
                                      "\nhint: choose another directory or delete this one"));
    }
    first_line_ = journal_first_line(options_.source_digest, options_.options, plan);
    for (const std::string& name : names) {
      if (name.ends_with(kPartialSuffix)) FATHOM_TRY(remove_file(join_path(directory_, name)));
    }
    FATHOM_TRY(keep_intact_files());
    FATHOM_ASSIGN(journal_, AppendFile::open(join_path(directory_, kJournalName),
                                             is_new ? 0 : journalled_.valid_bytes));
    return is_new ? journal_.append_line(first_line_) : Status{};
  }

  // Two writes may only share files if they agree on every byte of every header.
  Sha256Digest plan_digest() const {
    Sha256 hash;
    for (const ShardPlan& shard : shards_)
      hash.update(str_cat(shard.name, '\n', shard.header));
    return hash.finish();
  }

  // A model without a journal was not written by this code; it is not ours to replace.
  Status refuse_foreign(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      const bool is_side_file = std::any_of(options_.side_files.begin(), options_.side_files.end(),
                                            [&](const auto& file) { return file.first == name; });
      if (name.ends_with(".safetensors") || name == kIndexName || is_side_file) {
        return invalid_argument(str_cat(directory_, ": holds ", name,
                                        " already\nhint: choose another directory or delete it"));
      }
    }
    return {};
  }

  // Hashes the journalled files again. If one is not as recorded, the journal starts anew with the
  // others.
  Status keep_intact_files() {
    for (const FileDigest& recorded : journalled_.files) {
      const Result<FileDigest> found = digest_file(directory_, recorded.name);
      if (found.ok() && *found == recorded) intact_.push_back(recorded);
    }
    if (intact_.size() == journalled_.files.size()) return {};
    std::string text = str_cat(first_line_, '\n');
    for (const FileDigest& file : intact_)
      str_append(text, str_cat(journal_file_line(file), '\n'));
    FATHOM_TRY(write_file(join_path(directory_, kJournalName), text));
    journalled_.files = intact_;
    journalled_.finished = false;
    journalled_.valid_bytes = static_cast<int64_t>(text.size());
    return {};
  }

  const FileDigest* find_intact(std::string_view name) const {
    const auto found = std::find_if(intact_.begin(), intact_.end(),
                                    [&](const FileDigest& file) { return file.name == name; });
    return found == intact_.end() ? nullptr : &*found;
  }

  Status check_space() const {
    int64_t needed = 0;
    for (const ShardPlan& shard : shards_) {
      if (find_intact(shard.name) == nullptr) needed += shard.file_bytes();
    }
    const Result<int64_t> free = free_space_bytes(directory_);
    if (!free.ok() || *free >= needed) return {};
    return io_error(str_cat("cannot write ", directory_, ": needs ", needed, " bytes, ", *free,
                            " bytes are free\nhint: free some space there, or write elsewhere"));
  }

  Status finish_shard(const ShardPlan& shard) {
    report_.num_shards += 1;
    report_.data_bytes += shard.data_bytes;
    if (find_intact(shard.name) != nullptr) {
      report_.reused_shards += 1;
      return {};
    }
    FATHOM_ASSIGN(AtomicFile file, AtomicFile::create(join_path(directory_, shard.name),
                                                      {.reserve_bytes = shard.file_bytes()}));
    Sha256 hash;
    hash.update(shard.header);
    FATHOM_TRY(file.append(shard.header));
    for (const size_t i : shard.tensors)
      FATHOM_TRY(write_tensor(i, file, hash));
    FATHOM_TRY(file.commit());
    return record({shard.name, shard.file_bytes(), to_hex(hash.finish())});
  }

  Status write_tensor(size_t i, AtomicFile& file, Sha256& hash) {
    const TensorEntry& tensor = plan_[i];
    TensorSink sink(file, hash, *tensor_bytes(tensor.dtype, tensor.shape));
    if (Status status = source_(i, sink); !status.ok()) {
      return std::move(status).add_context(str_cat("writing tensor ", quoted(tensor.name)));
    }
    if (sink.bytes_left() == 0) return {};
    return invalid_argument(str_cat("tensor ", quoted(tensor.name), ": ", sink.bytes_left(),
                                    " bytes are missing of ",
                                    describe_tensor(tensor.dtype, tensor.shape)));
  }

  // A small file, known whole. It is recorded like a shard.
  Status finish_text(const std::string& name, const std::string& content) {
    const FileDigest digest = {name, static_cast<int64_t>(content.size()), to_hex(sha256(content))};
    if (const FileDigest* found = find_intact(name); found != nullptr) {
      if (*found == digest) return {};
      return invalid_argument(
          str_cat(directory_, ": holds another ", name,
                  " of the same source and options\nhint: delete the directory"));
    }
    FATHOM_TRY(write_file(join_path(directory_, name), content));
    return record(digest);
  }

  Status record(const FileDigest& file) {
    if (FATHOM_FAIL_POINT("checkpoint_writer.record")) return io_error("injected failure");
    FATHOM_TRY(journal_.append_line(journal_file_line(file)));
    journalled_.files.push_back(file);
    return {};
  }

  const std::string& directory_;
  const TensorPlan& plan_;
  const CheckpointWriterOptions& options_;
  const TensorProducer& source_;
  std::vector<ShardPlan> shards_;
  Journal journalled_;              // what the journal on disk says
  std::vector<FileDigest> intact_;  // files of an earlier write that are as recorded
  std::string first_line_;          // of the journal
  AppendFile journal_;
  WriteReport report_;
};

}  // namespace

Status TensorSink::append(std::span<const std::byte> data) {
  const auto bytes = static_cast<int64_t>(data.size());
  if (bytes > left_) {
    return invalid_argument(str_cat(bytes, " bytes for the ", left_, " that are left"));
  }
  left_ -= bytes;
  hash_.update(data);
  return file_.append(data);
}

Result<WriteReport> write_checkpoint(const std::string& directory,
                                     const TensorPlan& plan,
                                     const CheckpointWriterOptions& options,
                                     const TensorProducer& source) {
  return Writer(directory, plan, options, source).write();
}

}  // namespace fathom
