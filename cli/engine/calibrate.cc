#include "cli/engine/calibrate.h"

#include <algorithm>

#include "cli/engine/model_setup.h"
#include "cli/io/progress.h"
#include "cli/io/text_input.h"
#include "fathom/runtime/eval/input_ranges.h"

namespace fathom::cli {
namespace {

constexpr int64_t kBlock = 511;

// Experts go by the grouped product, which knows the rows of each.
EngineOptions options_of(const std::string& directory, const GlobalFlags& globals) {
  EngineOptions o = globals.engine;
  o.model = directory;
  o.moe = MoeStrategy::kGrouped;
  return o;
}

Result<std::vector<int32_t>> first_tokens(const Tokenizer& tokenizer,
                                          const std::string& text_file,
                                          int64_t max_tokens) {
  FATHOM_ASSIGN(const std::string text, read_text(text_file));
  if (text.empty()) return corrupt(str_cat(text_file, ": is 0 bytes long, expected some text"));
  if (!tokenizer.bos_id()) return corrupt("the tokenizer names no token of the beginning");
  std::vector<int32_t> ids = tokenizer.encode(text);
  ids.resize(std::min(ids.size(), static_cast<size_t>(max_tokens)));
  return ids;
}

Status run_blocks(const Model& model,
                  const Compute& compute,
                  std::span<const int32_t> ids,
                  int32_t bos,
                  bool quiet) {
  FATHOM_ASSIGN(const auto session,
                ForwardSession::create(model, compute, {.max_tokens = kBlock + 1}));
  const auto total = static_cast<int64_t>(ids.size());
  Progress bar("calibrating", "tokens", quiet);
  std::vector<int32_t> block;
  for (int64_t at = 0; at < total; at += kBlock) {
    bar.update(at, total);
    const auto piece = ids.subspan(static_cast<size_t>(at));
    block.assign(1, bos);
    block.insert(block.end(), piece.begin(), piece.begin() + std::min<int64_t>(kBlock, total - at));
    session->reset();
    FATHOM_TRY(session->prefill(0, block, LogitRows::kLast, {}));
  }
  return {};
}

}  // namespace

Result<Calibration> calibrate(const std::string& directory,
                              const std::string& text_file,
                              int64_t max_tokens,
                              const GlobalFlags& globals) {
  FATHOM_ASSIGN(const Tokenizer tokenizer, load_tokenizer(directory));
  FATHOM_ASSIGN(const std::vector<int32_t> ids, first_tokens(tokenizer, text_file, max_tokens));
  const EngineOptions options = options_of(directory, globals);
  FATHOM_ASSIGN(const ModelSource source, open_source(options));
  FATHOM_ASSIGN(const Machine machine, set_up_machine(options));
  InputRanges ranges;
  std::unique_ptr<Model> model;
  {
    Progress bar("loading", "", globals.quiet);
    OpenOptions open = open_options(options, machine);
    open.progress = [&](int64_t done, int64_t total) { bar.update(done, total); };
    open.loaded = [&](const WeightPlan& plan) { ranges.watch(plan); };
    FATHOM_ASSIGN(model, open_model(source, options.placement(), open));
  }
  FATHOM_TRY(run_blocks(*model, machine.compute(), ids, *tokenizer.bos_id(), globals.quiet));
  Calibration out{.input_amax = {}, .tokens = static_cast<int64_t>(ids.size())};
  FATHOM_ASSIGN(out.input_amax, ranges.by_weight());
  return out;
}

}  // namespace fathom::cli
