#include "fathom/serve/load/load_record.h"

namespace fathom::serve {

void TokenTimes::note(AnswerPiece::Kind kind, int64_t now_ns) {
  switch (kind) {
    case AnswerPiece::Kind::kNothing:
    case AnswerPiece::Kind::kOpening:
      return;
    case AnswerPiece::Kind::kTokens:
      if (last_token_ns_ != 0) gaps_ns_.push_back(now_ns - last_token_ns_);
      last_token_ns_ = now_ns;
      break;
    case AnswerPiece::Kind::kClosing:
      break;
  }
  if (first_ns_ == 0) first_ns_ = now_ns;
  last_ns_ = now_ns;
}

void fill_record(const TokenTimes& times,
                 const ReceivedAnswer& answer,
                 int64_t planned_prompt,
                 LoadRecord& record) {
  record.ttft_ns = times.any() ? times.first_ns() : 0;
  record.latency_ns = times.last_ns();
  record.itl_ns = times.gaps_ns();
  record.counted = answer.counted;
  record.prompt_tokens = answer.counted.prompt.value_or(planned_prompt);
  const int64_t events = static_cast<int64_t>(times.gaps_ns().size()) + (times.any() ? 1 : 0);
  record.output_tokens = answer.counted.completion.value_or(events);
  record.text = answer.reasoning + answer.content;
}

}  // namespace fathom::serve
