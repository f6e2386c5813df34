#include "fathom/report/record/gathered_phases.h"

#include <algorithm>
#include <utility>

#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

void finish(TracePhase& phase) {
  const auto steps = static_cast<int64_t>(phase.steps.size());
  str_append(phase.title, str_cat(": ", steps, steps == 1 ? " step, " : " steps, ",
                                  phase.steps.front().tokens, " tokens in the first"));
  for (auto& entry : phase.step_sizes) {
    auto& sizes = entry.second;
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  }
}

}  // namespace

Status GatheredPhases::add(const char* name,
                           const char* title,
                           const Recorder& recorder,
                           std::span<const OpRecord> records,
                           const TraceStep& step) {
  if (recorder.dropped() > 0) {
    return internal_error(str_cat(std::string_view(name), ": ", recorder.dropped(), " of ",
                                  recorder.total(), " calls did not fit the recorder"));
  }
  FATHOM_ASSIGN(TracePhase pass, make_phase(name, title, records, recorder.statistics(), symbols_));
  auto phase = std::find_if(phases_.begin(), phases_.end(),
                            [&](const TracePhase& p) { return p.name == name; });
  if (phase == phases_.end()) {
    phases_.push_back({.name = name, .title = title, .ops = {}, .steps = {}, .step_sizes = {}});
    phase = phases_.end() - 1;
  }
  for (TraceOp& op : pass.ops) {
    op.step = static_cast<int>(phase->steps.size());
    phase->ops.push_back(std::move(op));
  }
  phase->steps.push_back(step);
  for (const auto& [symbol, sizes] : pass.step_sizes) {
    auto& known = phase->step_sizes[symbol];
    known.insert(known.end(), sizes.begin(), sizes.end());
  }
  return {};
}

std::vector<TracePhase> GatheredPhases::take() {
  for (TracePhase& phase : phases_)
    finish(phase);
  return std::exchange(phases_, {});
}

}  // namespace fathom
