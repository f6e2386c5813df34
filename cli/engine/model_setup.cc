#include "cli/engine/model_setup.h"

#include "cli/flags.h"
#include "cli/io/progress.h"
#include "cli/io/terminal.h"
#include "fathom/weights/checkpoint/model_folder.h"

namespace fathom::cli {

Result<EngineOptions> checked_options(const EngineOptions& options, SourceUse use) {
  FATHOM_TRY(validate(options, use));
  EngineOptions checked = options;
  if (!options.model.empty()) {
    FATHOM_ASSIGN(checked.model, resolve_model_argument(options.model));
  }
  return checked;
}

std::string short_name(const EngineOptions& options) {
  std::string_view path = options.preset.empty() ? options.model : options.preset;
  while (path.size() > 1 && path.ends_with('/'))
    path.remove_suffix(1);
  return std::string(path.substr(path.find_last_of('/') + 1));
}

Status check_max_model_len(int64_t length, const ModelConfig& config) {
  if (length <= config.max_position_embeddings) return {};
  return invalid_argument(str_cat("--max-model-len is ", length, ", expected 1 to ",
                                  config.max_position_embeddings, " (the model's context)"));
}

Result<Tokenizer> load_tokenizer(const std::string& directory) {
  Result<Tokenizer> tokenizer = Tokenizer::load(directory);
  if (!tokenizer.ok()) return hint_at_files(std::move(tokenizer).status(), directory);
  return tokenizer;
}

Result<OpenedModel> open_for(const EngineOptions& options,
                             const GlobalFlags& globals,
                             const Machine& machine,
                             bool draft) {
  FATHOM_ASSIGN(const EngineOptions checked, checked_options(options));
  FATHOM_ASSIGN(const ModelSource source, open_source(checked));
  return open_from(source, checked, globals, machine, draft);
}

Result<OpenedModel> open_from(const ModelSource& source,
                              const EngineOptions& options,
                              const GlobalFlags& globals,
                              const Machine& machine,
                              bool draft) {
  Progress bar("loading", "", globals.quiet);
  OpenOptions open = open_options(options, machine);
  open.model.draft = draft;
  open.progress = [&](int64_t done, int64_t total) { bar.update(done, total); };
  OpenedModel opened{.title = source.title, .directory = options.model, .model = nullptr};
  FATHOM_ASSIGN(opened.model, open_model(source, options.placement(), open));
  return opened;
}

}  // namespace fathom::cli
