// Counters of a server's /metrics that a load run takes before and after itself.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace fathom::serve {

/// What speculation did. Tokens and passes are sums over all labels.
struct DraftCounters {
  double drafts = 0;  ///< passes that verified drafts
  double draft_tokens = 0;
  double accepted_tokens = 0;
  std::vector<double> accepted_at;  ///< by place in the draft
};

/// Reads Prometheus text: spec_decode_num_{drafts,draft_tokens,accepted_tokens}_total and
/// ..._num_accepted_tokens_per_pos_total{position}, whatever their prefix. Nothing if the server
/// does not have them.
std::optional<DraftCounters> read_draft_counters(std::string_view metrics);

/// The difference of two readings.
DraftCounters operator-(const DraftCounters& after, const DraftCounters& before);

}  // namespace fathom::serve
