// Drafts from what a sequence holds already: prompt and answer often say things again.
#pragma once

#include <unordered_map>

#include "fathom/runtime/draft/ngram_index.h"
#include "fathom/runtime/draft/proposer.h"

namespace fathom {

/// For every model: it asks for no pass and keeps 12 to 16 bytes a token.
class NgramProposer final : public Proposer {
 public:
  /// The tokens behind the longest match of the end of a sequence. Where they run into its end they
  /// go on with themselves, as a loop does.
  Status propose(Executor& executor, std::span<const DraftPlace> places) override;

  void forget(RequestId id) override { indices_.erase(id); }

 private:
  std::unordered_map<RequestId, NgramIndex> indices_;
};

}  // namespace fathom
