#if FATHOM_WITH_GRAMMAR

#include "fathom/grammar/grammar_state.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "fathom/base/check.h"
#include "fathom/base/log.h"

namespace fathom {
namespace {

// More steps than are ever taken back; older ones are dropped, half of them at a time.
constexpr size_t kMaxSteps = 1024;

}  // namespace

GrammarState::GrammarState(std::shared_ptr<const GrammarPlan> plan)
    : plan_(std::move(plan)),
      places_(plan_->calls, plan_->vocabulary->markers()),
      matcher_(plan_->library) {
  const Phase behind_reasoning = plan_->has_free_content ? Phase::kContent : Phase::kGrammar;
  steps_.reserve(kMaxSteps);
  const auto begin =
      plan_->calls_or_content ? CallPlace::Phase::kContent : CallPlace::Phase::kFrame;
  steps_.push_back({.phase = plan_->free_until ? Phase::kReasoning : behind_reasoning,
                    .place = {.phase = begin}});
}

AnswerMarker GrammarState::trigger() const {
  return plan_->calls == AnswerGrammar::ToolCalls::kDsml ? AnswerMarker::kDsml
                                                         : AnswerMarker::kCallsBegin;
}

ConstraintPlace GrammarState::next(std::span<uint32_t> mask) {
  const Step& step = steps_.back();
  const VocabularyMasks& vocabulary = *plan_->vocabulary;
  switch (step.phase) {
    case Phase::kReasoning:
      if (may_end_in_reasoning()) return ConstraintPlace::kFree;
      std::ranges::copy(vocabulary.all_but_ends(), mask.begin());
      return ConstraintPlace::kPayload;
    case Phase::kContent:
      return ConstraintPlace::kFree;
    case Phase::kEnded:
    case Phase::kBroken:
      std::ranges::copy(vocabulary.ends(), mask.begin());
      return ConstraintPlace::kStructure;
    case Phase::kGrammar:
      break;
  }
  fill_mask(mask);
  return plan_->calls == AnswerGrammar::ToolCalls::kNone ? ConstraintPlace::kPayload
                                                         : CallPlaces::place_of(step.place);
}

void GrammarState::fill_mask(std::span<uint32_t> mask) {
  const VocabularyMasks& vocabulary = *plan_->vocabulary;
  const VocabularyMasks::Mask& allowed =
      plan_->calls == AnswerGrammar::ToolCalls::kNone ? vocabulary.text() : vocabulary.calls();
  FATHOM_CHECK(mask.size() == allowed.size(), "a mask of another vocabulary");
  auto shape = static_cast<int64_t>(mask.size());
  DLTensor tensor{.data = mask.data(),
                  .device = {.device_type = kDLCPU, .device_id = 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &shape,
                  .strides = nullptr,
                  .byte_offset = 0};
  uint32_t any = 0;
  try {
    matcher_.FillNextTokenBitmask(&tensor);
    for (size_t i = 0; i < mask.size(); ++i)
      any |= mask[i] &= allowed[i];
  } catch (const std::exception& error) {
    log_warn("a grammar gave no mask: ", error.what());
    any = 0;
  }
  // Nothing fits: only an end is left. A client's grammar may lead there.
  if (any == 0) std::copy(vocabulary.ends().begin(), vocabulary.ends().end(), mask.begin());
}

bool GrammarState::accept(int32_t token) {
  Step step = steps_.back();
  step.was_matched = false;
  bool is_allowed = true;
  switch (step.phase) {
    case Phase::kReasoning:
      is_allowed = may_end_in_reasoning() || !plan_->vocabulary->is_end(token);
      if (token == *plan_->free_until)
        step.phase = plan_->has_free_content ? Phase::kContent : Phase::kGrammar;
      break;
    case Phase::kContent:
      take_content(step, token);
      break;
    case Phase::kGrammar:
      is_allowed = match(step, token);
      break;
    case Phase::kEnded:
    case Phase::kBroken:
      is_allowed = plan_->vocabulary->is_end(token);
      break;
  }
  if (!is_allowed) return false;
  if (steps_.size() == kMaxSteps) steps_.erase(steps_.begin(), steps_.begin() + kMaxSteps / 2);
  steps_.push_back(step);
  return true;
}

bool GrammarState::match(Step& step, int32_t token) {
  const VocabularyMasks& vocabulary = *plan_->vocabulary;
  const bool has_calls = plan_->calls != AnswerGrammar::ToolCalls::kNone;
  if (!VocabularyMasks::has(has_calls ? vocabulary.calls() : vocabulary.text(), token))
    return false;
  try {
    step.was_matched = matcher_.AcceptToken(token);
  } catch (const std::exception& error) {
    log_warn("a grammar took no token: ", error.what());
    step.was_matched = false;
  }
  if (vocabulary.is_end(token)) {
    // Where nothing else was left the mask gives the end too.
    if (!step.was_matched) {
      std::vector<uint32_t> mask(vocabulary.ends().size());
      fill_mask(mask);
      if (mask != vocabulary.ends()) return false;
    }
    step.phase = step.was_matched ? Phase::kEnded : Phase::kBroken;
    return true;
  }
  if (step.was_matched && has_calls) places_.advance(step.place, token, vocabulary.bytes(token));
  return step.was_matched;
}

// Free text, looked at for what opens a section of calls.
void GrammarState::take_content(Step& step, int32_t token) {
  const bool is_dsml = trigger() == AnswerMarker::kDsml;
  const auto id = plan_->vocabulary->markers().id(trigger());
  if (id) {
    if (token == *id && (!is_dsml || step.behind_angle)) return open_section(step, {});
    const std::string_view bytes = plan_->vocabulary->bytes(token);
    step.behind_angle = bytes.ends_with('<');
    return;
  }
  const std::string_view word = answer_marker_text(trigger());
  std::string_view bytes = plan_->vocabulary->bytes(token);
  while (!bytes.empty()) {
    const char c = bytes.front();
    bytes.remove_prefix(1);
    const bool begins = step.spelled == 0 || c == word.front();
    if (begins && c != word.front()) step.behind_angle = c == '<';
    step.spelled = spelled_bytes(word, step.spelled, c);
    if (step.spelled < word.size()) continue;
    step.spelled = 0;
    if (is_dsml && !step.behind_angle) continue;
    open_section(step, bytes);
    if (step.phase == Phase::kGrammar) return;
  }
}

// `rest`: text of the token that opened it. Text that is no section leaves the content free.
void GrammarState::open_section(Step& step, std::string_view rest) {
  CallPlace place;
  if (trigger() == AnswerMarker::kDsml) place.phase = CallPlace::Phase::kTag;
  if (!rest.empty()) {
    try {
      if (!matcher_.AcceptString(std::string{rest})) return;
    } catch (const std::exception& error) {
      log_warn("a grammar took no text: ", error.what());
      return;
    }
    step.was_matched = true;
    places_.advance(place, -1, rest);
  }
  step.phase = Phase::kGrammar;
  step.place = place;
}

void GrammarState::rollback(int64_t count) {
  FATHOM_CHECK(count >= 0 && static_cast<size_t>(count) < steps_.size(),
               "more tokens taken back than were kept");
  int num_matched = 0;
  for (; count > 0; --count) {
    num_matched += steps_.back().was_matched ? 1 : 0;
    steps_.pop_back();
  }
  if (num_matched == 0) return;
  try {
    matcher_.Rollback(num_matched);
  } catch (const std::exception& error) {
    log_warn("a grammar took no token back: ", error.what());
    steps_.back().phase = Phase::kBroken;
  }
}

}  // namespace fathom

#endif
