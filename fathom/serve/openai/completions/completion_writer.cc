#include "fathom/serve/openai/completions/completion_writer.h"

#include <algorithm>
#include <utility>

#include "fathom/serve/answer/reply_form.h"
#include "fathom/text/utf8.h"

namespace fathom::serve {
namespace {

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

CompletionWriter::CompletionWriter(ExchangePtr exchange, CompletionStyle style)
    : exchange_(std::move(exchange)),
      style_(std::move(style)),
      choices_(static_cast<size_t>(style_.num_choices) * static_cast<size_t>(style_.num_prompts)),
      prompt_logprobs_(static_cast<size_t>(style_.num_prompts)) {}

void CompletionWriter::open() {
  if (!style_.reply.stream || std::exchange(streaming_, true)) return;
  exchange_->begin_stream(event_stream_head(), {});
}

void CompletionWriter::begin(const AnswerUsage& so_far,
                             const std::vector<PromptLogprobs>* prompt_logprobs) {
  prompt_tokens_ = so_far.prompt_tokens;
  if (prompt_logprobs != nullptr) prompt_logprobs_.front() = *prompt_logprobs;
  open();
}

void CompletionWriter::start(size_t index, const std::vector<PromptLogprobs>* prompt_logprobs) {
  Choice& choice = choices_[index];
  if (choice.started) return;
  choice.started = true;
  std::vector<PromptLogprobs>& of_prompt = prompt_logprobs_[prompt_of(index)];
  if (prompt_logprobs != nullptr && of_prompt.empty()) of_prompt = *prompt_logprobs;
  if (style_.prompts.empty()) return;
  const EchoedPrompt& prompt = style_.prompts[prompt_of(index)];
  choice.text = prompt.text;
  choice.echoes = style_.reply.logprobs;
  for (size_t i = 0; choice.echoes && i < prompt.tokens.size(); ++i)
    take_offset(choice.num_chars, prompt.tokens[i], i > 0 || !prompt.hidden_bos);
}

int64_t CompletionWriter::take_offset(int64_t& num_chars, int32_t token, bool counts) const {
  const std::string_view bytes = style_.reply.tokenizer->token_bytes(token);
  int64_t offset = num_chars;
  if (!counts || bytes.empty()) return offset;
  // A token that begins within a character stands where that character does.
  if (is_continuation(bytes.front()) && offset > 0) --offset;
  num_chars += static_cast<int64_t>(
      std::ranges::count_if(bytes, [](char c) { return !is_continuation(c); }));
  return offset;
}

std::vector<CompletionWriter::Place> CompletionWriter::echoed_places(size_t prompt) const {
  const EchoedPrompt& echoed = style_.prompts[prompt];
  const std::vector<PromptLogprobs>& logprobs = prompt_logprobs_[prompt];
  std::vector<Place> places;
  int64_t num_chars = 0;
  for (size_t i = 0; i < echoed.tokens.size(); ++i) {
    Place place{.news = {.token = echoed.tokens[i], .logprob = 0.0f, .top_logprobs = {}}};
    if (i > 0 && i - 1 < logprobs.size()) {
      const PromptLogprobs& known = logprobs[i - 1];
      place.news.logprob = known.token.logprob;
      const size_t most = std::min(known.top.size(), static_cast<size_t>(style_.top_logprobs));
      place.news.top_logprobs.assign(known.top.begin(),
                                     known.top.begin() + static_cast<std::ptrdiff_t>(most));
    }
    place.offset = take_offset(num_chars, echoed.tokens[i], i > 0 || !echoed.hidden_bos);
    place.is_first = i == 0;
    places.push_back(std::move(place));
  }
  return places;
}

void CompletionWriter::delta(const ChoiceDelta& delta) {
  const auto index = static_cast<size_t>(delta.choice);
  start(index, delta.prompt_logprobs);
  Choice& choice = choices_[index];
  completion_tokens_ = delta.completion_tokens;
  choice.text += delta.parts.content;
  if (style_.reply.logprobs) {
    for (const TokenNews& news : delta.tokens) {
      const int64_t offset = take_offset(choice.num_chars, news.token, true);
      choice.places.push_back({.news = news, .offset = offset});
    }
  }
  if (style_.reply.stream && !choice.text.empty()) send_chunk(index, false);
}

void CompletionWriter::finish(const ChoiceEnd& end) {
  const auto index = static_cast<size_t>(end.choice);
  start(index, nullptr);
  choices_[index].end = end;
  if (style_.reply.stream) send_chunk(index, true);
}

void CompletionWriter::end(const AnswerUsage& usage, const AnswerTimings& timings) {
  const ReplyStyle& style = style_.reply;
  JsonWriter w;
  w.begin_object();
  write_reply_head(w, style, "text_completion");
  w.key("choices").begin_array();
  for (size_t i = 0; !style.stream && i < choices_.size(); ++i)
    write_choice(w, i, true);
  w.end_array();
  if (!style.stream || style.include_usage) {
    w.key("usage");
    write_usage(w, usage);
  }
  if (style.timings) {
    w.key("timings");
    write_timings(w, usage, timings);
  }
  w.end_object();
  if (!style.stream) {
    exchange_->reply(json_reply(w.take()));
    return;
  }
  if (style.include_usage || style.timings) exchange_->send(data_event(w.take()));
  exchange_->send(std::string(kDoneEvent));
  exchange_->end_stream();
}

void CompletionWriter::fail(const ApiError& error) {
  if (!streaming_) {
    exchange_->reply(openai_error_reply(error));
    return;
  }
  exchange_->send(data_event(openai_error_json(error)));
  exchange_->send(std::string(kDoneEvent));
  exchange_->end_stream();
}

void CompletionWriter::send_chunk(size_t index, bool shows_end) {
  JsonWriter w;
  w.begin_object();
  write_reply_head(w, style_.reply, "text_completion");
  w.key("choices").begin_array();
  write_choice(w, index, shows_end);
  w.end_array();
  if (style_.reply.continuous_usage) {
    w.key("usage");
    write_running_usage(w, prompt_tokens_, completion_tokens_);
  }
  w.end_object();
  choices_[index].text.clear();
  choices_[index].places.clear();
  choices_[index].echoes = false;
  exchange_->send(data_event(w.take()));
}

void CompletionWriter::write_choice(JsonWriter& w, size_t index, bool shows_end) {
  const Choice& choice = choices_[index];
  w.begin_object().key("index").integer(static_cast<int64_t>(index));
  w.key("text").string(choice.text).key("logprobs");
  if (!style_.reply.logprobs) {
    w.null();
  } else if (!choice.echoes) {
    write_logprobs(w, choice.places);
  } else {
    std::vector<Place> places = echoed_places(prompt_of(index));
    places.insert(places.end(), choice.places.begin(), choice.places.end());
    write_logprobs(w, places);
  }
  w.key("finish_reason");
  if (shows_end && choice.end) {
    w.string(finish_word(*choice.end));
    if (!choice.end->stop_text.empty()) w.key("stop_reason").string(choice.end->stop_text);
  } else {
    w.null();
  }
  if (style_.reply.prompt_logprobs) {
    w.key("prompt_logprobs");
    write_prompt_logprobs(w, prompt_logprobs_[prompt_of(index)], *style_.reply.tokenizer);
  }
  w.end_object();
}

// Lists side by side, as the old form has them.
void CompletionWriter::write_logprobs(JsonWriter& w, const std::vector<Place>& places) const {
  const Tokenizer& tokenizer = *style_.reply.tokenizer;
  w.begin_object().key("tokens").begin_array();
  for (const Place& place : places)
    w.string(tokenizer.token_bytes(place.news.token));
  w.end_array().key("token_logprobs").begin_array();
  for (const Place& place : places)
    place.is_first ? w.null() : w.number(printable_logprob(place.news.logprob));
  w.end_array().key("top_logprobs").begin_array();
  for (const Place& place : places) {
    if (place.is_first) {
      w.null();
      continue;
    }
    // Tokens with the same text share a key; the more probable one has it.
    std::vector<TokenLogprob> shown = place.news.top_logprobs;
    shown.push_back({place.news.token, place.news.logprob});
    std::vector<std::string> keys;
    w.begin_object();
    for (const TokenLogprob& entry : shown) {
      std::string key = utf8_lossy(tokenizer.token_bytes(entry.token));
      if (std::ranges::find(keys, key) != keys.end()) continue;
      w.key(key).number(printable_logprob(entry.logprob));
      keys.push_back(std::move(key));
    }
    w.end_object();
  }
  w.end_array().key("text_offset").begin_array();
  for (const Place& place : places)
    w.integer(place.offset);
  w.end_array().end_object();
}

}  // namespace fathom::serve
