// Which way of drafting is taken, and whether a model can take it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "fathom/models/model.h"
#include "fathom/runtime/draft/proposer.h"
#include "fathom/runtime/draft/tree/draft_tree.h"

namespace fathom {

/// `--speculative`.
enum class Speculative : uint8_t {
  kOff,
  kNgram,  ///< from the tokens of the sequence itself
  kMtp,    ///< by the draft layer of the model
};

/// "off", "ngram", "mtp".
std::string_view speculative_name(Speculative method);

/// Tokens of a decoding sequence that a step with such drafts computes at most:
/// MemoryRequest::max_queries.
inline int64_t most_queries(Speculative method, const DraftShape& shape) {
  return method == Speculative::kOff ? 1 : 1 + shape.drafts();
}

/// Whether the model, which may be dry, can make and verify such drafts. Errors:
/// InvalidArgument for numbers that contradict each other; Unsupported for a model without the
/// draft layer that is asked for, where its caches cannot be cut back by as many tokens, and for
/// trees that its attention does not take. They name the flag and what is possible.
Status check_speculative(Speculative method, const DraftShape& shape, const Model& model);

/// Null for kOff.
std::unique_ptr<Proposer> make_proposer(Speculative method, const DraftShape& shape);

}  // namespace fathom
