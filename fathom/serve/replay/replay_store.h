// Exact replay: the calls of earlier answers as they were sampled, found by the ids of the calls.
// When they come back in a history, the prompt takes these ids in place of a new rendering, and the
// cached prefix still matches.
//
//   record()  on the event loop, when an answer ends: keeps ids and calls as they are
//   recall()  on a worker, when a request is read: reads the ids it finds, once, whether they are
//             these calls. That takes 9 ms for a call of 32,768 ids, which the loop has not.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
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
  int64_t blocks = 0;   ///< kept now
  int64_t tokens = 0;   ///< of them
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

  /// Keeps the calls of one answer with their ids (call_tokens.h). Quick: what they say is seen
  /// when they are asked for.
  void record(const std::vector<ToolCall>& calls, std::vector<int32_t> tokens);

  /// Fills ChatMessage::sampled_calls of each turn whose calls are kept: the same ids in the same
  /// order, with the same names and arguments (as JSON), whose tokens read as exactly these calls.
  /// Others stay as they are, and tokens that say something else are forgotten.
  void recall(ChatConversation& conversation);

  ReplayStats stats() const;

 private:
  // Shared with those who read it without the lock.
  struct Block {
    Block(std::vector<ToolCall> c, std::vector<int32_t> t)
        : calls(std::move(c)), tokens(std::move(t)) {}

    const std::vector<ToolCall> calls;
    const std::vector<int32_t> tokens;
    std::atomic<bool> good{false};  // the tokens were read, and are these calls
  };

  using Blocks = std::list<std::shared_ptr<Block>>;

  bool reads_as(const std::vector<int32_t>& tokens, const std::vector<ToolCall>& calls) const;
  std::shared_ptr<Block> find(const std::string& first_id) const;
  void count_use(const Block& block);
  void refuse(const Block& block);

  // With the lock.
  Blocks::iterator place_of(const Block& block);
  void remove(Blocks::iterator place);

  const Tokenizer& tokenizer_;
  AnswerGrammar grammar_;
  const int64_t max_tokens_;

  mutable std::mutex mutex_;
  Blocks blocks_;  // the one used last comes first
  std::unordered_map<std::string, Blocks::iterator> by_first_id_;
  ReplayStats stats_;
};

}  // namespace fathom::serve
