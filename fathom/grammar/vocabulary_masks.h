// A vocabulary as the grammar library takes it, and which of its tokens an answer may hold at all.
//
// Added tokens never match text. The markers of tool calls must be found by their ids alone, and
// the library takes no token without text; so each gets a text that no grammar of characters
// matches: a byte that is not UTF-8, and its number.
#pragma once

#if FATHOM_WITH_GRAMMAR

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>
#include <xgrammar/tokenizer_info.h>

#include "fathom/base/status.h"
#include "fathom/grammar/call_markers.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

class VocabularyMasks {
 public:
  using Mask = std::vector<uint32_t>;

  /// Errors: InvalidArgument for logits narrower than the vocabulary, and for end tokens that are
  /// none or out of range.
  static Result<VocabularyMasks> create(const Tokenizer& tokenizer,
                                        int64_t width,
                                        std::vector<int32_t> end_ids);

  const xgrammar::TokenizerInfo& library() const { return library_; }

  const CallMarkers& markers() const { return markers_; }

  int64_t width() const { return width_; }

  /// The bytes of a token that is text; empty for any other.
  std::string_view bytes(int32_t id) const;

  bool is_end(int32_t id) const { return has(ends_, id); }

  /// The end tokens.
  const Mask& ends() const { return ends_; }

  /// Every id of the width but the ends.
  const Mask& all_but_ends() const { return all_but_ends_; }

  /// What any answer may hold: tokens of text and ends.
  const Mask& text() const { return text_; }

  /// The same with the markers of calls.
  const Mask& calls() const { return calls_; }

  static bool has(const Mask& mask, int32_t id) {
    const auto word = static_cast<size_t>(id) / 32;
    return id >= 0 && word < mask.size() && (mask[word] >> (id % 32) & 1) != 0;
  }

 private:
  explicit VocabularyMasks(xgrammar::TokenizerInfo library) : library_(std::move(library)) {}

  xgrammar::TokenizerInfo library_;
  CallMarkers markers_;
  int64_t width_ = 0;
  Mask ends_;
  Mask all_but_ends_;
  Mask text_;
  Mask calls_;
};

}  // namespace fathom

#endif
