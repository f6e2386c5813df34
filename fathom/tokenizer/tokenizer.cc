#include "fathom/tokenizer/tokenizer.h"

#include "fathom/base/check.h"
#include "fathom/text/utf8.h"

namespace fathom {

struct Tokenizer::Work {
  std::vector<int32_t> ids;
  std::vector<uint32_t> piece_ends;
  Bpe::Scratch scratch;
};

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  FATHOM_CHECK(text.size() < INT32_MAX / 3, "the text is too long to encode in one go");
  std::string valid;
  if (!is_valid_utf8(text)) {
    valid = utf8_lossy(text);
    text = valid;
  }
  Work work;
  const bool with_bos =
      options.add_bos == AddBos::kYes || (options.add_bos == AddBos::kAsConfigured && adds_bos_);
  if (with_bos && bos_id_) work.ids.push_back(*bos_id_);
  switch (options.added_tokens) {
    case AddedTokens::kAsText:
      encode_plain(text, work);
      break;
    case AddedTokens::kParse:
      encode_around(raw_added_, text, &normalized_added_, work);
      break;
  }
  return std::move(work.ids);
}

void Tokenizer::encode_around(const AddedTokenMatcher& matcher,
                              std::string_view text,
                              const AddedTokenMatcher* next,
                              Work& work) const {
  const auto encode_rest = [&](std::string_view rest) {
    if (next != nullptr) {
      encode_around(*next, rest, nullptr, work);
    } else {
      encode_plain(rest, work);
    }
  };
  size_t begin = 0;
  while (const auto match = matcher.find(text, begin)) {
    encode_rest(text.substr(begin, match->begin - begin));
    work.ids.push_back(match->id);
    begin = match->end;
  }
  encode_rest(text.substr(begin));
}

void Tokenizer::encode_plain(std::string_view text, Work& work) const {
  pretokenizer_.split(text, work.piece_ends);
  uint32_t begin = 0;
  for (const uint32_t end : work.piece_ends) {
    bpe_.encode(text.substr(begin, end - begin), work.ids, work.scratch);
    begin = end;
  }
}

std::string Tokenizer::decode(std::span<const int32_t> ids, SpecialTokens special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (special_tokens == SpecialTokens::kSkip && is_special(id)) continue;
    bytes.append(token_bytes(id));
  }
  return is_valid_utf8(bytes) ? bytes : utf8_lossy(bytes);
}

}  // namespace fathom
