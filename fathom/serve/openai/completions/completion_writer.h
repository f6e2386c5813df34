// Writes the answers to one or more prompts as completions do: whole, or in chunks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fathom/serve/answer/reply_writer.h"
#include "fathom/serve/openai/completions/completion_request.h"

namespace fathom::serve {

class CompletionWriter final : public ReplyWriter {
 public:
  CompletionWriter(ExchangePtr exchange, CompletionStyle style);

  void open() override;
  void begin(const AnswerUsage& so_far,
             const std::vector<PromptLogprobs>* prompt_logprobs) override;
  void delta(const ChoiceDelta& delta) override;
  void finish(const ChoiceEnd& end) override;
  void end(const AnswerUsage& usage, const AnswerTimings& timings) override;
  void fail(const ApiError& error) override;

 private:
  // A token with its place in the text, in characters.
  struct Place {
    TokenNews news;
    int64_t offset = 0;
    bool is_first = false;  // of a prompt: it has no probability
  };

  struct Choice {
    std::string text;           // of a stream: what no chunk has shown yet
    std::vector<Place> places;  // the same of tokens
    int64_t num_chars = 0;      // of all tokens so far
    bool started = false;
    bool echoes = false;  // the tokens of its prompt come before `places`
    std::optional<ChoiceEnd> end;
  };

  // Puts what is echoed before the choice.
  void start(size_t index, const std::vector<PromptLogprobs>* prompt_logprobs);

  size_t prompt_of(size_t choice) const { return choice / static_cast<size_t>(style_.num_choices); }

  // The offset of a token behind `num_chars` characters, which grow by its own where it counts.
  int64_t take_offset(int64_t& num_chars, int32_t token, bool counts) const;

  // What is echoed of a prompt; made for each choice when that is written, and kept by none.
  std::vector<Place> echoed_places(size_t prompt) const;
  void write_choice(JsonWriter& w, size_t index, bool shows_end);
  void write_logprobs(JsonWriter& w, const std::vector<Place>& places) const;
  void send_chunk(size_t index, bool shows_end);

  ExchangePtr exchange_;
  CompletionStyle style_;
  bool streaming_ = false;
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  std::vector<Choice> choices_;
  std::vector<std::vector<PromptLogprobs>> prompt_logprobs_;  // of each prompt, for all its choices
};

}  // namespace fathom::serve
