// Cuts text into the pieces that byte-pair merges may not cross.
//
// A checkpoint describes the cuts by a list of regular expressions, each applied to every piece
// that the one before it left. No regular expression runs here: the list is compared with the two
// lists of the DeepSeek families, and each known expression has a hand-written scanner that takes
// linear time on any text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/text/json.h"

namespace fathom {

/// Collects the places where one step cuts one piece. Offsets ascend; repeated ones count once.
class CutList {
 public:
  /// Cuts of the piece that begins at `base` of the whole text go to `ends`, as offsets of the
  /// text.
  CutList(uint32_t base, std::vector<uint32_t>& ends) : base_(base), last_(base), ends_(ends) {}

  /// Ends a part at `offset` of the piece.
  void cut(size_t offset) {
    const uint32_t end = base_ + static_cast<uint32_t>(offset);
    if (end == last_) return;
    ends_.push_back(end);
    last_ = end;
  }

  /// Makes the bytes from `begin` to `end` a part of their own.
  void isolate(size_t begin, size_t end) {
    cut(begin);
    cut(end);
  }

 private:
  uint32_t base_;
  uint32_t last_;
  std::vector<uint32_t>& ends_;
};

/// A list of cutting steps. Immutable, so safe to share between threads.
class Pretokenizer {
 public:
  /// Reads the value of "pre_tokenizer" in tokenizer.json. Errors: Unsupported, quoting the first
  /// pattern or setting that is not known; Corrupt when the value has another structure. `what`
  /// names the file.
  static Result<Pretokenizer> from_json(const Json& pre_tokenizer, std::string_view what);

  /// Replaces `ends` by the end offset of each piece of `text`, which is valid UTF-8 and shorter
  /// than 4 GiB. Pieces are not empty and cover the text; no text, no piece. Linear time.
  void split(std::string_view text, std::vector<uint32_t>& ends) const;

 private:
  using Step = void (*)(std::string_view piece, CutList& cuts);

  friend struct PretokenizerSteps;

  std::vector<Step> steps_;
};

}  // namespace fathom
