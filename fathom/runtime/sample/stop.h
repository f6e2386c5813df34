// When an answer ends, and which of its text is certain.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/runtime/request.h"
#include "fathom/runtime/sample/params.h"
#include "fathom/tokenizer/stream_decoder.h"

namespace fathom {

/// Finds the first of several texts in a stream of bytes, across all borders of its pieces, in one
/// pass: a Knuth-Morris-Pratt automaton for each text.
class StopStrings {
 public:
  /// Texts are not empty.
  explicit StopStrings(const std::vector<std::string>& texts);

  bool empty() const { return patterns_.empty(); }

  /// Takes one byte. The index of the text that ends with it (the longest, if there are several),
  /// or -1.
  int push(char byte);

  /// The longest end of the stream so far that may become a stop string, in bytes.
  size_t longest_partial() const;

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> failure;  // length of the longest proper border of each prefix
    uint32_t matched = 0;
  };

  std::vector<Pattern> patterns_;
};

/// What a token did to an answer. Views are valid until the next call.
struct StopOutcome {
  FinishReason finish = FinishReason::kNone;
  std::string_view text;       ///< what is certain now; nothing is ever taken back
  std::string_view stop_text;  ///< the stop string that was found
};

/// Follows one answer token by token. End tokens give no text. Text that may be the beginning of a
/// stop string is held back until that is decided.
class StopChecker {
 public:
  /// `end_ids`: the model's end tokens. `tokenizer` may be null where there is no text; it must
  /// outlive the checker. Stop strings need one.
  StopChecker(const SamplingParams& params,
              int64_t max_tokens,
              std::span<const int32_t> end_ids,
              const Tokenizer* tokenizer,
              SpecialTokens special_tokens);

  /// The next token of the answer.
  StopOutcome push(int32_t token);

  /// The text held back so far, when an answer is cut off from outside.
  std::string_view release();

  /// Tokens that may not come next, or `ahead` tokens behind the next one: end tokens until
  /// min_tokens were generated.
  std::span<const int32_t> banned(int64_t ahead = 0) const {
    return num_tokens_ + ahead < min_tokens_ ? std::span<const int32_t>(end_ids_)
                                             : std::span<const int32_t>();
  }

  /// Whether the token ends an answer of min_tokens.
  bool is_end(int32_t token) const;

 private:
  StopOutcome finish(FinishReason reason);
  // Appends text; the index of the stop string found in it, or -1.
  int take(std::string_view text);
  std::string_view hand_out(size_t keep);

  int64_t min_tokens_;
  int64_t max_tokens_;
  int64_t num_tokens_ = 0;
  std::vector<int32_t> end_ids_;  // sorted; of the model and of the request
  std::vector<std::string> stop_texts_;
  StopStrings stops_;
  std::optional<StreamDecoder> decoder_;
  std::string pending_;  // certain as text, but perhaps part of a stop string
  std::string out_;      // what the last call handed out
};

}  // namespace fathom
