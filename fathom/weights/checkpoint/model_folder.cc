#include "fathom/weights/checkpoint/model_folder.h"

#include <algorithm>
#include <utility>

#include "fathom/base/hint.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/checkpoint/gguf.h"
#include "fathom/weights/export/journal.h"

namespace fathom {
namespace {

bool is_pickle(std::string_view name) {
  return name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth") ||
         name.ends_with(".ckpt");
}

bool contains(const std::vector<std::string>& sorted, std::string_view name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

Status refuse_partial(const std::string& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!name.ends_with(kPartialSuffix)) continue;
    return corrupt(
        str_cat(directory, ": holds ", name,
                ", which an unfinished write left\nhint: run that command again to resume "
                "it, or delete the file"));
  }
  return {};
}

bool is_of_a_model(std::string_view name) {
  return name == "config.json" || name == "tokenizer.json" || name == kIndexName ||
         looks_like_shard(name);
}

}  // namespace

bool looks_like_shard(std::string_view name) {
  return name.starts_with("model") && name.ends_with(kShardSuffix);
}

Result<std::optional<Journal>> finished_journal(const std::string& directory,
                                                const std::vector<std::string>& names) {
  FATHOM_TRY(refuse_partial(directory, names));
  if (!contains(names, kJournalName)) return std::optional<Journal>();
  FATHOM_ASSIGN(Journal journal, read_journal(directory));
  if (journal.finished) return std::optional(std::move(journal));
  return corrupt(str_cat(directory, ": ", kJournalName, " records ", journal.files.size(),
                         journal.files.size() == 1 ? " file" : " files",
                         " and no end, so the write did not finish\nhint: run that command again "
                         "to resume it"));
}

Status refuse_other_weights(const std::string& directory, const std::vector<std::string>& names) {
  const auto pickle = std::find_if(names.begin(), names.end(), is_pickle);
  if (pickle != names.end()) {
    return unsupported(
        str_cat(directory, ": ", *pickle,
                " is a pickle file, which can run code and is never opened\nhint: convert "
                "the checkpoint to safetensors"));
  }
  const auto gguf =
      std::find_if(names.begin(), names.end(), [](const auto& n) { return n.ends_with(".gguf"); });
  return gguf == names.end() ? Status{} : refuse_gguf(join_path(directory, *gguf));
}

Status hint_at_files(Status status, const std::string& directory) {
  if (status.code() == StatusCode::kNotFound) {
    return with_hint_instead(
        std::move(status),
        "a model is a directory with config.json, tokenizer.json and model.safetensors "
        "or its shards; fetch what is missing");
  }
  if (status.code() != StatusCode::kCorrupt) return status;
  return with_hint(std::move(status), str_cat("fetch the file again; `fathom verify ", directory,
                                              "` says what else is damaged"));
}

Status check_model_folder(const std::string& directory) {
  FATHOM_ASSIGN(const std::vector<std::string> names, list_directory(directory));
  FATHOM_TRY(refuse_partial(directory, names));
  // Where all is there Checkpoint::open asks, and reads the journal once.
  if (contains(names, "config.json") && contains(names, "tokenizer.json")) return {};
  FATHOM_TRY(finished_journal(directory, names).status());
  if (std::any_of(names.begin(), names.end(), is_of_a_model)) return {};
  FATHOM_TRY(refuse_other_weights(directory, names));
  return not_found(
      str_cat(directory, ": is no model: it holds neither config.json nor tokenizer.json nor ",
              kSingleShardName, "\nhint: name the directory that holds them, or ORG/NAME"));
}

}  // namespace fathom
