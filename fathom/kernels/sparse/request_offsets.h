// Which tokens of a call belong to which request: request b owns tokens q_offsets[b] ..
// q_offsets[b+1]-1.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/base/status.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// The request of token t, the last one that begins at or before it and is not empty; as many as
/// there are if none owns it.
inline int64_t request_at(const int32_t* q_offsets, int64_t num_requests, int64_t t) {
  return std::upper_bound(q_offsets, q_offsets + num_requests + 1, t) - q_offsets - 1;
}

/// InvalidArgument unless offsets begin at 0, never descend and stay within `tokens`.
Status check_request_offsets(const View& q_offsets, int64_t tokens);

}  // namespace fathom
