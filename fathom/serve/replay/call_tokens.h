// The ids of the calls of an answer, exactly as they were sampled.
//
//   content ids ... [marker] ids of the calls ... end token
//                   ^------- kept -------------^
//
// The first marker is a token of its own, so the text before it is encoded apart from it, and a
// prompt may hold these ids behind any text that ends where they began.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fathom/tokenizer/chat/chat.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom::serve {

/// Collects them while an answer grows.
class CallTokens {
 public:
  /// An answer in this grammar; keeps nothing where the vocabulary has no marker for its calls.
  CallTokens(const Tokenizer& tokenizer, const AnswerGrammar& grammar);

  void push(int32_t id);

  /// The ids from the first marker on, without end tokens. Empty if there was none, or if more came
  /// than is worth keeping.
  std::vector<int32_t> take() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  std::optional<int32_t> marker_;
  std::vector<int32_t> ids_;
};

}  // namespace fathom::serve
