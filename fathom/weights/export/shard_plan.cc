#include "fathom/weights/export/shard_plan.h"

#include <algorithm>
#include <unordered_set>

#include "fathom/base/str_cat.h"
#include "fathom/text/json_writer.h"
#include "fathom/text/utf8.h"
#include "fathom/weights/checkpoint/checkpoint.h"

namespace fathom {
namespace {

int64_t element_bytes(Format dtype) {
  return format_info(dtype).bits / 8;
}

int64_t bytes_of(const TensorEntry& tensor) {
  return tensor_bytes(tensor.dtype, tensor.shape).value_or(0);
}

Status check_tensors(const std::vector<TensorEntry>& tensors) {
  if (static_cast<int64_t>(tensors.size()) > kMaxTensors) {
    return invalid_argument(
        str_cat("a checkpoint of ", tensors.size(), " tensors, expected at most ", kMaxTensors));
  }
  std::unordered_set<std::string_view> names;
  for (const TensorEntry& tensor : tensors) {
    const std::string& name = tensor.name;
    if (name.empty() || static_cast<int64_t>(name.size()) > kMaxTensorNameBytes ||
        name == "__metadata__" || !is_valid_utf8(name)) {
      return invalid_argument(str_cat("tensor name ", quoted(name), ", expected 1 to ",
                                      kMaxTensorNameBytes, " bytes of UTF-8"));
    }
    if (!names.insert(name).second) {
      return invalid_argument(str_cat("tensor ", quoted(name), " is there twice"));
    }
    if (tensor.dtype == Format::kNone || is_quantised(tensor.dtype)) {
      return invalid_argument(str_cat("tensor ", quoted(name), " of format ",
                                      format_name(tensor.dtype), ", expected a dense format"));
    }
    if (!tensor_bytes(tensor.dtype, tensor.shape)) {
      return invalid_argument(str_cat("tensor ", quoted(name), ": ",
                                      describe_tensor(tensor.dtype, tensor.shape),
                                      " is beyond the limits of the format"));
    }
  }
  return {};
}

bool is_aligned(const std::vector<TensorEntry>& tensors, const std::vector<size_t>& order) {
  int64_t offset = 0;
  for (const size_t i : order) {
    if (offset % element_bytes(tensors[i].dtype) != 0) return false;
    offset += bytes_of(tensors[i]);
  }
  return true;
}

void finish_shard(const std::vector<TensorEntry>& tensors,
                  const std::vector<std::pair<std::string, std::string>>& metadata,
                  ShardPlan& shard) {
  if (!is_aligned(tensors, shard.tensors)) {
    std::stable_sort(shard.tensors.begin(), shard.tensors.end(), [&](size_t a, size_t b) {
      return element_bytes(tensors[a].dtype) > element_bytes(tensors[b].dtype);
    });
  }
  std::vector<TensorEntry> entries;
  for (const size_t i : shard.tensors) {
    entries.push_back(tensors[i]);
    shard.data_bytes += bytes_of(tensors[i]);
  }
  shard.header = format_safetensors_header(entries, metadata);
}

// "00002" for 2: shard numbers have five digits, as Hugging Face's tools write them.
std::string five_digits(size_t number) {
  std::string digits = str_cat(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

}  // namespace

Result<std::vector<ShardPlan>> plan_shards(
    const std::vector<TensorEntry>& tensors,
    int64_t max_shard_bytes,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  FATHOM_TRY(check_tensors(tensors));
  std::vector<ShardPlan> shards(1);
  int64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = bytes_of(tensors[i]);
    const bool is_full = filled + bytes > max_shard_bytes ||
                         static_cast<int64_t>(shards.back().tensors.size()) == kMaxTensorsPerFile;
    if (is_full && !shards.back().tensors.empty()) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().tensors.push_back(i);
    filled += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    finish_shard(tensors, metadata, shards[i]);
    shards[i].name = shards.size() == 1 ? std::string(kSingleShardName)
                                        : str_cat("model-", five_digits(i + 1), "-of-",
                                                  five_digits(shards.size()), ".safetensors");
    if (static_cast<int64_t>(shards[i].header.size()) > kMaxHeaderBytes + kHeaderLengthBytes) {
      return invalid_argument(str_cat(shards[i].name, ": a header of ", shards[i].header.size(),
                                      " bytes, expected at most ", kMaxHeaderBytes,
                                      "\nhint: use smaller shards"));
    }
  }
  return shards;
}

std::string format_index(const std::vector<TensorEntry>& tensors,
                         const std::vector<ShardPlan>& shards) {
  std::vector<std::pair<std::string_view, std::string_view>> map;
  int64_t total = 0;
  for (const ShardPlan& shard : shards) {
    for (const size_t i : shard.tensors)
      map.emplace_back(tensors[i].name, shard.name);
    total += shard.data_bytes;
  }
  std::sort(map.begin(), map.end());
  JsonWriter writer(JsonStyle::kIndented);
  writer.begin_object().key("metadata").begin_object().key("total_size").integer(total);
  writer.end_object().key("weight_map").begin_object();
  for (const auto& [tensor, shard] : map)
    writer.key(tensor).string(shard);
  return writer.end_object().end_object().take() + "\n";
}

}  // namespace fathom
