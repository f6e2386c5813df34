#include "fathom/runtime/sample/stop.h"

#include <algorithm>

namespace fathom {

StopStrings::StopStrings(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    Pattern p{.text = text, .failure = std::vector<uint32_t>(text.size(), 0)};
    for (size_t i = 1; i < text.size(); ++i) {
      uint32_t border = p.failure[i - 1];
      while (border > 0 && text[border] != text[i])
        border = p.failure[border - 1];
      p.failure[i] = border + (text[border] == text[i] ? 1 : 0);
    }
    patterns_.push_back(std::move(p));
  }
}

int StopStrings::push(char byte) {
  int found = -1;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& p = patterns_[i];
    while (p.matched > 0 && p.text[p.matched] != byte)
      p.matched = p.failure[p.matched - 1];
    if (p.text[p.matched] == byte) ++p.matched;
    if (p.matched < p.text.size()) continue;
    p.matched = p.failure[p.matched - 1];
    if (found < 0 || p.text.size() > patterns_[static_cast<size_t>(found)].text.size()) {
      found = static_cast<int>(i);
    }
  }
  return found;
}

size_t StopStrings::longest_partial() const {
  size_t longest = 0;
  for (const Pattern& p : patterns_)
    longest = std::max<size_t>(longest, p.matched);
  return longest;
}

StopChecker::StopChecker(const SamplingParams& params,
                         int64_t max_tokens,
                         std::span<const int32_t> end_ids,
                         const Tokenizer* tokenizer,
                         SpecialTokens special_tokens)
    : min_tokens_(params.min_tokens),
      max_tokens_(max_tokens),
      end_ids_(params.stop_token_ids),
      stop_texts_(params.stop),
      stops_(params.stop) {
  if (!params.ignore_eos) end_ids_.insert(end_ids_.end(), end_ids.begin(), end_ids.end());
  std::ranges::sort(end_ids_);
  end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, special_tokens);
}

bool StopChecker::is_end(int32_t token) const {
  return std::ranges::binary_search(end_ids_, token);
}

StopOutcome StopChecker::push(int32_t token) {
  ++num_tokens_;
  out_.clear();
  if (num_tokens_ > min_tokens_ && is_end(token)) return finish(FinishReason::kStop);
  if (decoder_) {
    if (const int found = take(decoder_->push(token)); found >= 0) {
      const std::string& stop = stop_texts_[static_cast<size_t>(found)];
      pending_.resize(pending_.size() - stop.size());
      return {FinishReason::kStop, hand_out(0), stop};
    }
  }
  if (num_tokens_ >= max_tokens_) return finish(FinishReason::kLength);
  return {FinishReason::kNone, hand_out(stops_.longest_partial()), {}};
}

StopOutcome StopChecker::finish(FinishReason reason) {
  return {reason, release(), {}};
}

std::string_view StopChecker::release() {
  // What flush() adds is U+FFFD for a character that never came in full.
  if (decoder_) pending_ += decoder_->flush();
  return hand_out(0);
}

int StopChecker::take(std::string_view text) {
  for (char byte : text) {
    pending_.push_back(byte);
    if (stops_.empty() || num_tokens_ < min_tokens_) continue;
    if (const int found = stops_.push(byte); found >= 0) return found;
  }
  return -1;
}

std::string_view StopChecker::hand_out(size_t keep) {
  const size_t certain = pending_.size() - keep;
  out_.assign(pending_, 0, certain);
  pending_.erase(0, certain);
  return out_;
}

}  // namespace fathom
