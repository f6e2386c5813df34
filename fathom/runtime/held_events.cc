#include "fathom/runtime/held_events.h"

#include <utility>

namespace fathom {

void HeldEvents::add(const std::shared_ptr<EventListener>& listener, const TokenEvent& event) {
  if (count_ == held_.size()) held_.emplace_back();
  Held& held = held_[count_++];
  held.listener = listener;
  held.event = event;
  held.text.assign(event.text);
  held.stop_text.assign(event.stop_text);
  held.top_logprobs.assign(event.top_logprobs.begin(), event.top_logprobs.end());
}

void HeldEvents::tell_all() {
  if (std::exchange(telling_, true)) return;
  for (size_t i = 0; i < count_; ++i) {
    Held& held = held_[i];
    held.event.text = held.text;
    held.event.stop_text = held.stop_text;
    held.event.top_logprobs = held.top_logprobs;
    held.listener->tell(held.event);
    held.listener.reset();
  }
  count_ = 0;
  telling_ = false;
}

}  // namespace fathom
