// Events that are told a little later: while the device computes the next step, so that what
// callbacks do costs no time between two steps.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "fathom/runtime/request.h"

namespace fathom {

/// Who hears of a request. It outlives the request while events of it are held.
struct EventListener {
  TokenCallback on_token;
  std::vector<PromptLogprobs> prompt_logprobs;
  bool heard_end = false;

  /// Nothing is told behind the end.
  void tell(const TokenEvent& event) {
    if (heard_end) return;
    heard_end = event.finish != FinishReason::kNone;
    if (on_token) on_token(event);
  }
};

/// A queue of events with copies of what they refer to. Takes no memory once it has held as much.
class HeldEvents {
 public:
  void add(const std::shared_ptr<EventListener>& listener, const TokenEvent& event);

  /// Tells all, oldest first. A callback that gets here again finds nothing to do: the rest is told
  /// behind it.
  void tell_all();

 private:
  struct Held {
    std::shared_ptr<EventListener> listener;
    TokenEvent event;
    std::string text;
    std::string stop_text;
    std::vector<TokenLogprob> top_logprobs;
  };

  std::vector<Held> held_;
  size_t count_ = 0;  // of held_; the others are kept for their memory
  bool telling_ = false;
};

}  // namespace fathom
