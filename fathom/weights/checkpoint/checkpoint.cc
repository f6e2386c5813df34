#include "fathom/weights/checkpoint/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <sys/stat.h>
#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/base/log.h"
#include "fathom/base/str_cat.h"
#include "fathom/text/file_kind.h"
#include "fathom/text/json.h"
#include "fathom/weights/checkpoint/model_folder.h"
#include "fathom/weights/verify/recorded_files.h"

namespace fathom {
namespace {

constexpr int64_t kMaxIndexBytes = 256ll << 20;
constexpr int kHardMaxShards = 65'536;

using WeightMap = std::vector<std::pair<std::string, std::string>>;

bool contains(const std::vector<std::string>& sorted, std::string_view name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

Result<WeightMap> read_index(const std::string& directory) {
  const std::string path = join_path(directory, kIndexName);
  FATHOM_ASSIGN(const std::string text, read_file(path, kMaxIndexBytes));
  const JsonLimits limits{.max_bytes = kMaxIndexBytes, .max_keys = kMaxTensors};
  FATHOM_ASSIGN(Json json, parse_json_file(text, limits, path));
  const Json* map = json.find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return corrupt(str_cat(path, ": weight_map is ", map == nullptr ? "absent" : map->kind_name(),
                           ", expected an object"));
  }
  if (map->members().empty()) {
    return corrupt(str_cat(path,
                           ": weight_map is empty, expected the shard of each tensor; the "
                           "file is not that of this model"));
  }
  WeightMap out;
  for (const auto& [tensor, shard] : map->members()) {
    if (!shard.is_string()) {
      return corrupt(str_cat(path, ": shard of tensor ", quoted(tensor), " is ", shard.kind_name(),
                             ", expected a string"));
    }
    const std::string& name = shard.as_string();
    if (!is_plain_file_name(name) || !name.ends_with(kShardSuffix)) {
      return corrupt(str_cat(path, ": shard of tensor ", quoted(tensor), " is ", quoted(name),
                             ", expected a plain file name that ends with .safetensors"));
    }
    out.emplace_back(tensor, name);
  }
  return out;
}

// The shards an index names, sorted; each must be there.
Result<std::vector<std::string>> indexed_shards(const std::string& directory,
                                                const WeightMap& weight_map,
                                                const std::vector<std::string>& names) {
  std::vector<std::string> shards;
  for (const auto& [tensor, shard] : weight_map)
    shards.push_back(shard);
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  for (const std::string& shard : shards) {
    if (!contains(names, shard)) {
      return corrupt(str_cat(
          directory, ": ", kIndexName, " names ", shard,
          ", which is not there\nhint: the download or copy is incomplete; fetch what is missing"));
    }
  }
  return shards;
}

// Why there is nothing to open without an index.
Status explain_missing_index(const std::string& directory, const std::vector<std::string>& names) {
  const auto count = std::count_if(names.begin(), names.end(), looks_like_shard);
  if (count > 0) {
    return corrupt(str_cat(directory, ": holds ", count, " shards and no ", kIndexName,
                           ", so it cannot be told whether they are all there"));
  }
  FATHOM_TRY(refuse_other_weights(directory, names));
  return not_found(str_cat(directory, ": holds neither ", kSingleShardName, " nor ", kIndexName));
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& directory,
                                    const CheckpointOptions& options) {
  FATHOM_CHECK(options.max_shards > 0 && options.max_shards <= kHardMaxShards, "max_shards");
  FATHOM_ASSIGN(const std::vector<std::string> names, list_directory(directory));
  Checkpoint checkpoint;
  FATHOM_ASSIGN(checkpoint.journal_, finished_journal(directory, names));
  checkpoint.directory_ = directory;
  WeightMap weight_map;
  std::vector<std::string> shards;
  const bool has_index = contains(names, kIndexName);
  if (has_index) {
    FATHOM_ASSIGN(weight_map, read_index(directory));
    FATHOM_ASSIGN(shards, indexed_shards(directory, weight_map, names));
    std::vector<std::string> others;
    std::copy_if(names.begin(), names.end(), std::back_inserter(others), [&](const auto& name) {
      return looks_like_shard(name) && !contains(shards, name);
    });
    for (const std::string& name : others) {
      checkpoint.warn(str_cat(directory, ": ", kIndexName, " does not name ", name,
                              "; its tensors are used all the same"));
    }
    shards.insert(shards.end(), others.begin(), others.end());
    std::sort(shards.begin(), shards.end());
  } else if (contains(names, kSingleShardName)) {
    if (std::count_if(names.begin(), names.end(), looks_like_shard) > 1) {
      return explain_missing_index(directory, names);
    }
    shards = {std::string(kSingleShardName)};
  }
  if (shards.empty()) return explain_missing_index(directory, names);
  if (static_cast<int64_t>(shards.size()) > options.max_shards) {
    return corrupt(str_cat(directory, ": holds ", shards.size(), " shards, expected at most ",
                           options.max_shards));
  }
  for (const std::string& shard : shards) {
    FATHOM_TRY(checkpoint.add_file(shard, options.symlinks));
  }
  FATHOM_TRY(checkpoint.index_tensors());
  if (has_index) checkpoint.compare_with_index(weight_map);
  FATHOM_TRY(check_journalled_shards(checkpoint));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_file(const std::string& path, Symlinks symlinks) {
  Checkpoint checkpoint;
  checkpoint.directory_ = parent_directory(path);
  FATHOM_TRY(checkpoint.add_file(std::string(base_name(path)), symlinks));
  FATHOM_TRY(checkpoint.index_tensors());
  return checkpoint;
}

Status Checkpoint::add_file(const std::string& name, Symlinks symlinks) {
  FATHOM_ASSIGN(SafetensorsFile shard, open_safetensors(join_path(directory_, name), symlinks));
  const auto total = static_cast<int64_t>(tensors_.size() + shard.header.tensors.size());
  if (total > kMaxTensors) {
    return corrupt(
        str_cat(directory_, ": holds ", total, " tensors or more, expected at most ", kMaxTensors));
  }
  const int file = static_cast<int>(files_.size());
  for (TensorEntry& entry : shard.header.tensors) {
    const std::optional<int64_t> sum = checked_add(total_bytes_, entry.bytes());
    if (!sum) return corrupt(str_cat(directory_, ": sizes of tensors overflow"));
    total_bytes_ = *sum;
    tensors_.push_back({file, std::move(entry)});
  }
  files_.push_back(std::move(shard.file));
  data_begins_.push_back(shard.header.data_begin);
  file_names_.push_back(name);
  return {};
}

Status Checkpoint::index_tensors() {
  by_name_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [place, is_new] = by_name_.emplace(tensors_[i].entry.name, i);
    if (is_new) continue;
    const TensorRef& first = tensors_[place->second];
    return corrupt(str_cat(directory_, ": tensor ", quoted(first.entry.name), " is both in ",
                           file_names_[static_cast<size_t>(first.file)], " and in ",
                           file_names_[static_cast<size_t>(tensors_[i].file)]));
  }
  return {};
}

void Checkpoint::warn(std::string text) {
  log_warn(text);
  warnings_.push_back(std::move(text));
}

// Published checkpoints have incomplete and stale indexes: a difference is worth one line each way.
void Checkpoint::compare_with_index(const WeightMap& weight_map) {
  int64_t num_absent = 0;
  int64_t num_elsewhere = 0;
  std::string absent;
  std::string elsewhere;
  for (const auto& [name, shard] : weight_map) {
    const TensorRef* tensor = find(name);
    if (tensor == nullptr) {
      if (num_absent++ == 0) absent = name;
    } else if (file_names_[static_cast<size_t>(tensor->file)] != shard) {
      if (num_elsewhere++ == 0) elsewhere = name;
    }
  }
  if (num_absent > 0) {
    index_faults_.push_back(str_cat(directory_, ": ", kIndexName, " names ", num_absent,
                                    " tensors that no shard holds, such as ", quoted(absent)));
  }
  if (num_elsewhere > 0) {
    index_faults_.push_back(str_cat(directory_, ": ", kIndexName, " places ", num_elsewhere,
                                    " tensors in another shard than the one that holds them, such "
                                    "as ",
                                    quoted(elsewhere)));
  }
  for (const std::string& fault : index_faults_)
    warn(fault);
}

const TensorRef* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

Result<const TensorRef*> Checkpoint::get(std::string_view name) const {
  if (const TensorRef* tensor = find(name); tensor != nullptr) return tensor;
  return not_found(str_cat(directory_, ": has no tensor ", quoted(name)));
}

Status Checkpoint::read(const TensorRef& tensor, std::span<std::byte> dst) const {
  FATHOM_CHECK(static_cast<int64_t>(dst.size()) == tensor.entry.bytes(),
               "a buffer of another size than its tensor");
  return read_at(tensor, 0, dst);
}

Status Checkpoint::read_at(const TensorRef& tensor,
                           int64_t offset,
                           std::span<std::byte> dst) const {
  const auto size = static_cast<int64_t>(dst.size());
  FATHOM_CHECK(
      offset >= 0 && offset <= tensor.entry.bytes() && size <= tensor.entry.bytes() - offset,
      "a read beyond its tensor");
  Status status =
      files_[static_cast<size_t>(tensor.file)].read_at(tensor.entry.begin + offset, dst);
  if (status.ok()) return status;
  return std::move(status).add_context(str_cat("tensor ", quoted(tensor.entry.name)));
}

Result<FileTime> Checkpoint::last_change(int file) const {
  const File& shard = files_[static_cast<size_t>(file)];

  struct stat info {};

  if (fstat(shard.descriptor(), &info) != 0) return errno_status("examine", shard.path(), errno);
  return FileTime{.seconds = info.st_mtim.tv_sec, .nanoseconds = info.st_mtim.tv_nsec};
}

std::string Checkpoint::locate(const TensorRef& tensor) const {
  return str_cat(describe(tensor), " at byte ", tensor.entry.begin);
}

std::string Checkpoint::describe(const TensorRef& tensor) const {
  return str_cat(join_path(directory_, file_names_[static_cast<size_t>(tensor.file)]), ": tensor ",
                 quoted(tensor.entry.name));
}

}  // namespace fathom
