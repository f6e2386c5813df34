// Drafts: who takes some, and which of them came out.
#include <algorithm>

#include "fathom/runtime/engine.h"
#include "fathom/runtime/engine_request.h"

namespace fathom {

Status EngineCore::propose() {
  const int64_t most = settings_.plan.shape.max_queries - 1;
  if (settings_.proposer == nullptr || most == 0) return {};
  draft_places_.clear();
  for (Sequence* s : scheduler_.running()) {
    auto& r = static_cast<ActiveRequest&>(*s);
    r.drafts.clear();
    if (r.prefilling || !r.takes_drafts()) continue;
    const int64_t room = scheduler_.make_draft_room(r, most);
    if (room > 0) draft_places_.push_back({&r, room, sample_row(r, 0)});
  }
  if (draft_places_.empty()) return {};
  FATHOM_TRY(settings_.proposer->propose(*executor_, draft_places_));
  for (const DraftPlace& place : draft_places_)
    keep_useful_drafts(static_cast<ActiveRequest&>(*place.sequence));
  return {};
}

// Up to the first that no sampler draws, or behind which nothing comes.
void EngineCore::keep_useful_drafts(ActiveRequest& r) const {
  const auto useless = [&](int32_t id) {
    return id < 0 || id >= settings_.plan.shape.num_ids || r.stop.is_end(id);
  };
  r.drafts.erase(std::ranges::find_if(r.drafts, useless), r.drafts.end());
}

// The tokens that an item's rows gave, up to the first that was not drafted, that ends the request
// or that has no finite logits.
int64_t EngineCore::accept(ActiveRequest& r,
                           const StepItem& item,
                           std::span<const SampleResult> results) {
  accepted_ids_.clear();
  for (size_t i = 0; i < results.size(); ++i) {
    const SampleResult& result = results[i];
    if (!result.finite) break;
    Accepted& a = accepted_[i];
    a.token = result.token;
    a.logprob = result.logprob;
    a.top_logprobs = result.top_logprobs;
    // Banned until min_tokens or to be ignored, and drawn all the same: nothing else was allowed
    // (constrain).
    const bool ends = r.only_end_left || std::ranges::count(r.stop.banned(), result.token) > 0;
    a.outcome =
        ends ? StopOutcome{FinishReason::kStop, r.stop.release(), {}} : r.stop.push(result.token);
    r.counts.add(result.token);
    accepted_ids_.push_back(result.token);
    if (r.constraint != nullptr && !r.constraint->accept(result.token)) refused(r, a);
    const bool more = a.outcome.finish == FinishReason::kNone && i + 1 < results.size() &&
                      result.token == item.sequence->drafts[i];
    if (!more) break;
    a.text.assign(a.outcome.text);  // the next push() takes the memory of the view
    a.outcome.text = a.text;
  }
  return static_cast<int64_t>(accepted_ids_.size());
}

}  // namespace fathom
