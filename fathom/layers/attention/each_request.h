// The requests of a range, one after the other, for calls that take one at a time.
#pragma once

#include <optional>

#include "fathom/kernels/core/exec.h"
#include "fathom/layers/attention/mla.h"
#include "fathom/trace/scope.h"

namespace fathom {

/// One request of a range.
struct RangeRequest {
  int64_t index = 0;  ///< place in the range
  int64_t begin = 0;  ///< its first new token, counted from that of the range
  int64_t count = 0;  ///< new tokens
  int64_t keys = 0;   ///< new tokens included, or as many as it may have

  bool is_like(const RangeRequest& other) const {
    return count == other.count && keys == other.keys;
  }
};

inline RangeRequest request_of(const TokenRange& range, int64_t index) {
  const auto i = static_cast<size_t>(index);
  const int64_t begin = range.query_offsets[i];
  return {.index = index,
          .begin = begin,
          .count = range.query_offsets[i + 1] - begin,
          .keys = range.keys_of(index)};
}

/// Calls `attend(request)` for each request of a range that has tokens; where the range has
/// several, in a scope of its number. In a dry run requests of one size that follow each other
/// would make the same calls: those of the first are made, in a scope that stands for all of them
/// (kAlikeRequests), so that neither time nor memory grow with their number.
template <class Attend>
Status each_request(Exec& ex,
                    const TokenRange& range,
                    const Attend& attend,
                    CallSite site = CallSite::here()) {
  const int64_t num_requests = range.num_requests();
  for (int64_t b = 0; b < num_requests;) {
    const RangeRequest request = request_of(range, b);
    int64_t end = b + 1;
    while (ex.dry() && end < num_requests && request_of(range, end).is_like(request))
      ++end;
    std::optional<Scope> scope;
    if (end > b + 1) {
      scope.emplace(ex.recorder, kAlikeRequests, static_cast<int>(end - b), site);
    } else if (num_requests > 1) {
      scope.emplace(ex.recorder, "request", static_cast<int>(b), site);
    }
    if (request.count > 0) FATHOM_TRY(attend(request));
    b = end;
  }
  return {};
}

}  // namespace fathom
