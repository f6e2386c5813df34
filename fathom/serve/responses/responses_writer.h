// Writes an answer as the responses API does: whole, or as a stream of events.
//
//   response.created  response.in_progress
//   response.output_item.added
//     reasoning, message   response.content_part.added  .reasoning_text | .output_text .delta ...
//                          .done  response.content_part.done
//     function_call        response.function_call_arguments.delta ... .done
//     custom_tool_call     response.custom_tool_call_input.delta ... .done
//   response.output_item.done
//   response.completed | response.incomplete | response.failed
//
// Each event has a sequence_number, from 0.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/answer/reply_writer.h"
#include "fathom/serve/responses/custom_input.h"
#include "fathom/serve/responses/responses_request.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {

class ResponsesWriter final : public ReplyWriter {
 public:
  ResponsesWriter(ExchangePtr exchange, ResponsesStyle style);

  void open() override;
  void begin(const AnswerUsage& so_far,
             const std::vector<PromptLogprobs>* prompt_logprobs) override;
  void delta(const ChoiceDelta& delta) override;
  void finish(const ChoiceEnd& end) override;
  void end(const AnswerUsage& usage, const AnswerTimings& timings) override;
  void fail(const ApiError& error) override;

 private:
  struct Item {
    enum class Kind { kReasoning, kMessage, kFunctionCall, kCustomCall };
    Kind kind = Kind::kMessage;
    std::string id{};
    std::string call_id{};
    std::string name{};
    std::string text{};       // of a custom call: its input
    std::string arguments{};  // of a call, as the model wrote them
    CustomInput input{};
    std::string_view status = "in_progress";
  };

  // How the response stands.
  struct State {
    std::string_view status;
    const AnswerUsage* usage = nullptr;
    const ApiError* error = nullptr;
  };

  void add(Item::Kind kind, std::string_view text);
  void add_call(const ToolCallDelta& delta);
  void open_item(Item item);
  void close_item(std::string_view status);
  void send_delta(std::string_view text);
  void send_done(const Item& item);
  void send_part(std::string_view type, const Item& item);
  void send_response(std::string_view type, const State& state);

  void begin_event(JsonWriter& w, std::string_view type);
  void begin_item_event(JsonWriter& w, std::string_view type, const Item& item);
  void send(std::string_view type, JsonWriter& w);

  void write_item(JsonWriter& w, const Item& item) const;
  static void write_part(JsonWriter& w, const Item& item);
  void write_response(JsonWriter& w, const State& state) const;

  static bool has_parts(const Item& item) {
    return item.kind == Item::Kind::kReasoning || item.kind == Item::Kind::kMessage;
  }

  ExchangePtr exchange_;
  ResponsesStyle style_;
  bool streaming_ = false;
  bool is_open_ = false;  // whether the last item is
  int64_t next_number_ = 0;
  std::vector<Item> items_;
  std::optional<ChoiceEnd> end_;
};

}  // namespace fathom::serve
