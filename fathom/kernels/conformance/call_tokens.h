// The tokens of a recorded call, and lists of rows that they attend to: what its operands do not
// show and a case of it has to make up as a model would.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/base/rng.h"
#include "fathom/kernels/conformance/recorded_call.h"

namespace fathom {

/// Tokens of requests of equal lengths, request by request, the last of each at the end of its
/// keys.
struct CallTokens {
  int64_t tokens = 1;
  int64_t requests = 1;  ///< at most as many as tokens
  int64_t keys = 1;      ///< of a request, its tokens of this call among them

  int64_t request(int64_t token) const { return token * requests / tokens; }

  /// The first token of a request; `tokens` for the request behind the last.
  int64_t first(int64_t request) const { return (request * tokens + requests - 1) / requests; }

  int64_t position(int64_t token) const {
    const int64_t behind = first(request(token) + 1) - 1 - token;
    return std::max<int64_t>(keys - 1 - behind, 0);
  }
};

/// Of a call with `tokens` tokens; `requests` of them, or those of the step where it is 0.
inline CallTokens tokens_of(const RecordedCall& call,
                            const CaseSpec& spec,
                            int64_t tokens,
                            int64_t requests = 0) {
  const int64_t wanted = requests > 0 ? requests : spec.batch;
  return {.tokens = tokens,
          .requests = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(tokens, 1)),
          .keys = std::max<int64_t>(call.context().keys, 1)};
}

/// Entry j of a list of k rows that were chosen among n: ascending, none twice, a random one of
/// each k-th part; -1 from n on where there are fewer than k.
inline int64_t chosen_row(Rng& rng, int64_t j, int64_t k, int64_t n) {
  if (n <= k) return j < n ? j : -1;
  const int64_t begin = j * n / k;
  const int64_t end = (j + 1) * n / k;
  return begin + static_cast<int64_t>(rng.next_below(static_cast<uint32_t>(end - begin)));
}

/// Page `index` of a pool, scattered as pages of requests are: no page twice among the first
/// `pages`.
inline int64_t scattered_page(int64_t index, int64_t pages) {
  for (const int64_t stride : {5, 7, 11, 13})
    if (pages % stride != 0) return index * stride % pages;
  return index % pages;
}

}  // namespace fathom
