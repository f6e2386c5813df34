// Exact replay: the calls of earlier answers as they were sampled, found by the ids of the calls.
// When they come back in a history, the prompt takes these ids in place of a new rendering, and the
// cached prefix still matches.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fathom/tokenizer/chat/chat.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom::serve {

inline constexpr int64_t kDefaultReplayTokens = 100'000;

struct ReplayStats {
  int64_t blocks = 0;
  int64_t tokens = 0;   ///< kept now
  int64_t refused = 0;  ///< not kept: the ids do not read as these calls and nothing else
  int64_t recalled = 0;
};

/// Thread-safe. The blocks that were used longest ago go first.
class ReplayStore {
 public:
  /// `grammar`: of the answers of this server. The tokenizer outlives the store.
  ReplayStore(const Tokenizer& tokenizer,
              AnswerGrammar grammar,
              int64_t max_tokens = kDefaultReplayTokens);

  /// Keeps the calls of one answer with their ids (call_tokens.h), if these read as exactly these
  /// calls.
  void record(const std::vector<ToolCall>& calls, std::vector<int32_t> tokens);

  /// Fills ChatMessage::sampled_calls of each turn whose calls are kept: the same ids in the same
  /// order, with the same names and arguments (as JSON). Others stay as they are.
  void recall(ChatConversation& conversation);

  ReplayStats stats() const;

 private:
  struct Block {
    std::vector<ToolCall> calls;
    std::vector<int32_t> tokens;
  };

  bool reads_as(const std::vector<int32_t>& tokens, const std::vector<ToolCall>& calls) const;
  void make_room();

  const Tokenizer& tokenizer_;
  AnswerGrammar grammar_;
  const int64_t max_tokens_;

  mutable std::mutex mutex_;
  std::list<Block> blocks_;  // the one used last comes first
  std::unordered_map<std::string, std::list<Block>::iterator> by_first_id_;
  ReplayStats stats_;
};

}  // namespace fathom::serve
