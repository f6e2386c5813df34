#if FATHOM_WITH_GRAMMAR

#include "fathom/grammar/vocabulary_masks.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

constexpr char kNoUtf8 = '\xFF';

void add(VocabularyMasks::Mask& mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
}

}  // namespace

Result<VocabularyMasks> VocabularyMasks::create(const Tokenizer& tokenizer,
                                                int64_t width,
                                                std::vector<int32_t> end_ids) {
  if (width < tokenizer.vocab_size() || width > std::numeric_limits<int32_t>::max() / 2) {
    return invalid_argument(str_cat("the logits have a width of ", width, ", the vocabulary has ",
                                    tokenizer.vocab_size(), " tokens"));
  }
  if (end_ids.empty())
    return invalid_argument("a grammar needs an end token, the model names none");
  for (const int32_t id : end_ids) {
    if (id < 0 || id >= tokenizer.vocab_size())
      return invalid_argument(str_cat("the end token ", id, " is not in the vocabulary"));
  }
  const CallMarkers markers{tokenizer};
  const Mask none(static_cast<size_t>((width + 31) / 32), 0);
  Mask ends = none;
  Mask text = none;
  Mask calls = none;
  std::vector<std::string> texts(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string& bytes = texts[static_cast<size_t>(id)];
    const auto marker = markers.marker_of(id);
    if (std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end()) {
      for (Mask* mask : {&ends, &text, &calls})
        add(*mask, id);
    } else if (marker && CallMarkers::belongs_to_calls(*marker)) {
      bytes = str_cat(std::string(1, kNoUtf8), id);
      add(calls, id);
    } else if (!tokenizer.is_added(id) && !tokenizer.token_bytes(id).empty()) {
      bytes = tokenizer.token_bytes(id);
      add(text, id);
      add(calls, id);
    }
  }
  Mask all_but_ends = none;
  for (int32_t id = 0; id < width; ++id) {
    if (!VocabularyMasks::has(ends, id)) add(all_but_ends, id);
  }
  try {
    VocabularyMasks masks{xgrammar::TokenizerInfo{texts, xgrammar::VocabType::RAW,
                                                  static_cast<int>(width), std::move(end_ids)}};
    masks.markers_ = markers;
    masks.width_ = width;
    masks.ends_ = std::move(ends);
    masks.all_but_ends_ = std::move(all_but_ends);
    masks.text_ = std::move(text);
    masks.calls_ = std::move(calls);
    return masks;
  } catch (const std::exception& error) {
    return internal_error(
        str_cat("the grammar library does not take this vocabulary: ", error.what()));
  }
}

std::string_view VocabularyMasks::bytes(int32_t id) const {
  const auto& texts = library_.GetDecodedVocab();
  if (id < 0 || static_cast<size_t>(id) >= texts.size() || !has(text_, id)) return {};
  return texts[static_cast<size_t>(id)];
}

}  // namespace fathom

#endif
