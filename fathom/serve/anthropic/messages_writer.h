// Writes an answer as the messages API does: whole, or as a stream of events.
//
//   ping ...
//   message_start
//   content_block_start  content_block_delta ...  content_block_stop      of each block
//   message_delta (stop_reason, usage)  message_stop                      or  error
//
// Blocks: thinking (its last delta is the signature), text, tool_use.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/answer/reply_writer.h"
#include "fathom/serve/anthropic/messages_request.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {

/// "end_turn", "max_tokens", "stop_sequence", "tool_use" or "model_context_window_exceeded". The
/// API has "refusal" and "pause_turn" besides, which this server has no cause for.
std::string_view message_stop_reason(const ChoiceEnd& end);

class MessagesWriter final : public ReplyWriter {
 public:
  MessagesWriter(ExchangePtr exchange, MessagesStyle style);

  void open() override;
  void begin(const AnswerUsage& so_far,
             const std::vector<PromptLogprobs>* prompt_logprobs) override;
  void delta(const ChoiceDelta& delta) override;
  void finish(const ChoiceEnd& end) override;
  void end(const AnswerUsage& usage, const AnswerTimings& timings) override;
  void fail(const ApiError& error) override;

 private:
  struct Block {
    enum class Kind { kThinking, kText, kToolUse };
    Kind kind = Kind::kText;
    std::string text{};  // of a call: its arguments
    std::string call_id{};
    std::string call_name{};
  };

  void add(Block::Kind kind, std::string_view text);
  void add_call(const ToolCallDelta& delta);
  void open_block(Block block);
  void close_block();
  void send_delta(std::string_view type, std::string_view field, std::string_view text);
  void send(std::string_view name, JsonWriter& w);
  void write_block(JsonWriter& w, const Block& block) const;
  std::string whole_reply(const AnswerUsage& usage) const;

  ExchangePtr exchange_;
  MessagesStyle style_;
  bool streaming_ = false;
  bool is_open_ = false;  // whether the last block is
  std::vector<Block> blocks_;
  std::optional<ChoiceEnd> end_;
};

}  // namespace fathom::serve
