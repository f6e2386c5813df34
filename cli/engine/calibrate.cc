#include "cli/engine/calibrate.h"

#include <algorithm>

#include "cli/engine/model_setup.h"
#include "cli/engine/text_blocks.h"
#include "cli/io/progress.h"
#include "fathom/runtime/eval/input_ranges.h"

namespace fathom::cli {
namespace {

// Experts go by the grouped product, which knows the rows of each.
EngineOptions options_of(const std::string& directory, const GlobalFlags& globals) {
  EngineOptions o = globals.engine;
  o.model = directory;
  o.moe = MoeStrategy::kGrouped;
  return o;
}

Status run_blocks(const Model& model, const Compute& compute, const TextTokens& text, bool quiet) {
  FATHOM_ASSIGN(const auto session,
                ForwardSession::create(model, compute, {.max_tokens = kTextBlock + 1}));
  Progress bar("calibrating", "tokens", quiet);
  int64_t done = 0;
  for (const std::vector<int32_t>& block : in_blocks(text.ids, text.bos)) {
    bar.update(done, static_cast<int64_t>(text.ids.size()));
    session->reset();
    FATHOM_TRY(session->prefill(0, block, LogitRows::kLast, {}));
    done += static_cast<int64_t>(block.size()) - 1;
  }
  return {};
}

}  // namespace

Result<Calibration> calibrate(const std::string& directory,
                              const std::string& text_file,
                              int64_t max_tokens,
                              const GlobalFlags& globals) {
  FATHOM_ASSIGN(TextTokens text, read_tokens(directory, text_file));
  text.ids.resize(std::min(text.ids.size(), static_cast<size_t>(max_tokens)));
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
  FATHOM_TRY(run_blocks(*model, machine.compute(), text, globals.quiet));
  Calibration out{.input_amax = {}, .tokens = static_cast<int64_t>(text.ids.size())};
  FATHOM_ASSIGN(out.input_amax, ranges.by_weight());
  return out;
}

}  // namespace fathom::cli
