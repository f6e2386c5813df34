#include "fathom/tokenizer/stream_decoder.h"

namespace fathom {

std::string StreamDecoder::push(int32_t id) {
  if (special_tokens_ == SpecialTokens::kSkip && tokenizer_->is_special(id)) return {};
  return utf8_.push(tokenizer_->token_bytes(id));
}

}  // namespace fathom
