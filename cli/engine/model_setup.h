// Opens a model for a command, with a progress bar.
#pragma once

#include <memory>
#include <string>

#include "cli/command.h"
#include "fathom/api/open.h"
#include "fathom/runtime/forward_session.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom::cli {

/// The model of the options with MODEL as the directory that it leads to. Errors: those of validate
/// and resolve_model_argument.
Result<EngineOptions> checked_options(const EngineOptions& options,
                                      SourceUse use = SourceUse::kWeights);

/// "tiny-v3", the last part of a directory; the name of a description.
std::string short_name(const EngineOptions& options);

/// Refuses a --max-model-len beyond the context of the model. Errors: InvalidArgument.
Status check_max_model_len(int64_t length, const ModelConfig& config);

/// Tokenizer::load of a model's directory, whose errors say what helps.
Result<Tokenizer> load_tokenizer(const std::string& directory);

struct OpenedModel {
  std::string title;      ///< directory or preset
  std::string directory;  ///< empty for a preset
  std::unique_ptr<Model> model;
};

/// A checkpoint, or a preset with dummy weights, on the machine. Errors: those of checked_options,
/// open_source and open_model.
Result<OpenedModel> open_for(const EngineOptions& options,
                             const GlobalFlags& globals,
                             const Machine& machine,
                             bool draft = false);

/// The same of a source that is open; the options are checked.
Result<OpenedModel> open_from(const ModelSource& source,
                              const EngineOptions& options,
                              const GlobalFlags& globals,
                              const Machine& machine,
                              bool draft = false);

}  // namespace fathom::cli
