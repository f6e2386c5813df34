// Writes an answer as chat completions do: whole, or in chunks.
//
//   stream   role chunk of each choice; chunks of reasoning, content or calls; a chunk with the
//            finish_reason of each choice; usage; [DONE]
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fathom/serve/answer/reply_writer.h"
#include "fathom/serve/openai/chat/chat_request.h"

namespace fathom::serve {

class ChatWriter final : public ReplyWriter {
 public:
  ChatWriter(ExchangePtr exchange, ChatStyle style);

  void open() override;
  void begin(const AnswerUsage& so_far,
             const std::vector<PromptLogprobs>* prompt_logprobs) override;
  void delta(const ChoiceDelta& delta) override;
  void finish(const ChoiceEnd& end) override;
  void end(const AnswerUsage& usage, const AnswerTimings& timings) override;
  void fail(const ApiError& error) override;

 private:
  struct Choice {
    std::string reasoning;
    std::string content;
    std::vector<ToolCall> calls;
    std::vector<TokenNews> tokens;  // of a stream: those that no chunk has shown yet
    std::optional<ChoiceEnd> end;
  };

  // What a chunk shows; empty texts are left out.
  struct Piece {
    bool role = false;
    std::string_view reasoning{};
    std::string_view content{};
    const ToolCallDelta* call = nullptr;
    const ChoiceEnd* end = nullptr;
  };

  void send_piece(int choice, const Piece& piece);
  void write_delta(JsonWriter& w, int choice, const Piece& piece) const;
  void write_reasoning(JsonWriter& w, std::string_view text) const;
  void write_choice(JsonWriter& w, size_t index);
  void add_call(Choice& choice, const ToolCallDelta& delta);
  void send_last_chunk(const AnswerUsage& usage, const AnswerTimings& timings);
  std::string whole_reply(const AnswerUsage& usage, const AnswerTimings& timings);

  ExchangePtr exchange_;
  ChatStyle style_;
  bool streaming_ = false;
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  std::vector<Choice> choices_;
  std::optional<std::vector<PromptLogprobs>> prompt_logprobs_;
};

}  // namespace fathom::serve
