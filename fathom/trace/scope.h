// Scope: names where in the model the calls of a block belong ("layer 12", "self_attn").
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fathom/trace/recorder.h"

namespace fathom {

/// A scope of this name stands for requests that are alike: a dry run makes the calls of one. Its
/// index is how many there are.
inline constexpr const char* kAlikeRequests = "requests";

/// Calls that one recorded in these scopes stands for.
inline int64_t calls_in(std::span<const ScopeName> scopes) {
  int64_t calls = 1;
  for (const ScopeName& scope : scopes)
    if (std::string_view(scope.name) == kAlikeRequests) calls *= scope.index;
  return calls;
}

/// Of a record.
inline int64_t calls_of(const OpRecord& record) {
  return calls_in(std::span(record.scopes).first(record.scope_depth));
}

/// Pushes a name, and the place that opens it, for its lifetime. Does nothing without a recorder.
class Scope {
 public:
  Scope(Recorder* recorder, const char* name, int index = -1, CallSite site = CallSite::here())
      : recorder_(recorder) {
    if (recorder_ != nullptr) recorder_->push_scope({name, index, site});
  }

  ~Scope() {
    if (recorder_ != nullptr) recorder_->pop_scope();
  }

  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Recorder* recorder_;
};

}  // namespace fathom
