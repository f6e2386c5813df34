#include "fathom/runtime/draft/ngram_proposer.h"

namespace fathom {

Status NgramProposer::propose(Executor&, std::span<const DraftPlace> places) {
  for (const DraftPlace& place : places) {
    Sequence& s = *place.sequence;
    NgramIndex& index = indices_[s.id];
    index.follow(s.tokens);
    const int64_t from = index.find(s.tokens);
    if (from < 0) continue;
    for (int64_t i = 0; i < place.most; ++i) {
      const auto at = static_cast<size_t>(from + i);
      s.drafts.push_back(at < s.tokens.size() ? s.tokens[at] : s.drafts[at - s.tokens.size()]);
    }
  }
  return {};
}

}  // namespace fathom
