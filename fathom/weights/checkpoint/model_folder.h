// What lies in a directory that is named as a model, before any file of it is opened.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/weights/export/journal.h"

namespace fathom {

inline constexpr std::string_view kShardSuffix = ".safetensors";

/// Whether a file is a shard of a model though no index says so. Files of other kinds live beside
/// the weights too (an adapter, stored activations): only names that begin like a shard's are.
bool looks_like_shard(std::string_view name);

/// The journal of a directory, whose names are given and sorted; nothing where no writer of ours
/// left one. Errors: Corrupt, with the remedy, where one has not finished, so that no one vouches
/// for the weights: for a .partial file and for a journal without an end; those of read_journal.
Result<std::optional<Journal>> finished_journal(const std::string& directory,
                                                const std::vector<std::string>& names);

/// Refuses a directory without shards whose weights are those of another program. Errors:
/// Unsupported for pickle files and for GGUF files.
Status refuse_other_weights(const std::string& directory, const std::vector<std::string>& names);

/// An error of reading a file of the model, with what helps where one is missing (NotFound) or
/// damaged (Corrupt).
Status hint_at_files(Status status, const std::string& directory);

/// Refuses a directory that is no model or a part of one that is not finished, so that the first
/// file which is missing is not what the user hears of. Errors: those of finished_journal, which is
/// read where files are missing; those of refuse_other_weights; NotFound for a directory that holds
/// no file of a model at all. A part of a model, such as its tokenizer, is none of these.
Status check_model_folder(const std::string& directory);

}  // namespace fathom
