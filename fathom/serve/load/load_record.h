// What became of one request of a load run, and when its tokens came.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fathom/serve/client/answer_reader.h"

namespace fathom::serve {

/// Times of one stream, all in ns. A token counts where its event was read: events may hold several
/// tokens, and servers that draft send them so.
class TokenTimes {
 public:
  explicit TokenTimes(int64_t start_ns = 0) : start_ns_(start_ns), last_ns_(start_ns) {}

  void note(AnswerPiece::Kind kind, int64_t now_ns);

  /// From sending the request to its first tokens; where none came, to the event that ended it.
  int64_t first_ns() const { return first_ns_ - start_ns_; }

  /// To the last event with a choice: tokens or the reason of the end.
  int64_t last_ns() const { return last_ns_ - start_ns_; }

  /// Between events with tokens.
  const std::vector<int64_t>& gaps_ns() const { return gaps_ns_; }

  bool any() const { return first_ns_ != 0; }

 private:
  int64_t start_ns_;
  int64_t first_ns_ = 0;
  int64_t last_ns_ = 0;
  int64_t last_token_ns_ = 0;
  std::vector<int64_t> gaps_ns_;
};

struct LoadRecord {
  bool ok = false;
  std::string error_code{};  ///< "timeout", "429 queue_full"; empty if ok
  std::string error{};
  int64_t start_ns = 0;   ///< when it was sent, from the start of the run
  int64_t queued_ns = 0;  ///< before that, for a place below --max-concurrency
  int64_t ttft_ns = 0;
  int64_t latency_ns = 0;  ///< to the last token
  std::vector<int64_t> itl_ns{};
  int64_t prompt_tokens = 0;  ///< as counted by the server, else as planned
  int64_t output_tokens = 0;  ///< as counted by the server, else events with tokens
  CountedTokens counted{};
  std::string text{};
  int64_t session = -1;  ///< of the agent scenario, as `turn`
  int64_t turn = -1;
};

/// Takes over what a stream brought. `planned_prompt` counts where the server did not.
void fill_record(const TokenTimes& times,
                 const ReceivedAnswer& answer,
                 int64_t planned_prompt,
                 LoadRecord& record);

}  // namespace fathom::serve
