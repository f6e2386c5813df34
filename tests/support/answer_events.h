// Answers as writers see them: deltas made by hand, and whole answers cut at random.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/base/str_cat.h"
#include "fathom/serve/answer/reply_writer.h"

namespace fathom::serve {

inline ChoiceDelta reasoning_delta(std::string text) {
  ChoiceDelta delta;
  delta.parts.reasoning = std::move(text);
  return delta;
}

inline ChoiceDelta content_delta(std::string text, int choice = 0) {
  ChoiceDelta delta{.choice = choice};
  delta.parts.content = std::move(text);
  return delta;
}

inline ChoiceDelta call_delta(int index, std::string name, std::string arguments) {
  ChoiceDelta delta;
  delta.parts.tool_calls.push_back({index, std::move(name), std::move(arguments)});
  return delta;
}

inline constexpr AnswerUsage kTestUsage{.prompt_tokens = 10,
                                        .cached_tokens = 4,
                                        .completion_tokens = 5,
                                        .reasoning_tokens = 2,
                                        .accepted_draft_tokens = 1,
                                        .drafted_tokens = 3};

/// What a writer hears of an answer of one choice.
inline void write_answer(ReplyWriter& writer,
                         const std::vector<ChoiceDelta>& deltas,
                         const ChoiceEnd& end) {
  writer.begin({.prompt_tokens = 10, .cached_tokens = 4}, nullptr);
  for (const ChoiceDelta& delta : deltas)
    writer.delta(delta);
  writer.finish(end);
  writer.end(kTestUsage, {});
}

/// An answer in whole.
struct TestAnswer {
  std::string reasoning;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
};

inline TestAnswer random_answer(Rng& rng) {
  const auto text = [&rng](uint32_t most) {
    std::string out;
    for (uint32_t i = rng.next_below(most); i > 0; --i)
      out += rng.next_below(8) == 0 ? std::string("\u00e9\n\"\\")
                                    : std::string(1, static_cast<char>('a' + rng.next_below(26)));
    return out;
  };
  TestAnswer answer{.reasoning = text(12), .content = text(12), .calls = {}};
  const uint32_t num_calls = rng.next_below(4);
  for (uint32_t i = 0; i < num_calls; ++i) {
    std::string arguments = "{\"input\":\"";
    for (const char c : text(10)) {
      if (c == '"' || c == '\\') arguments += '\\';
      arguments += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    answer.calls.emplace_back(str_cat("f", i % 2), arguments + "\"}");
  }
  return answer;
}

/// The deltas of an answer in pieces of up to four bytes.
inline std::vector<ChoiceDelta> cut_answer(const TestAnswer& answer, Rng& rng) {
  std::vector<ChoiceDelta> deltas;
  const auto cut = [&](const std::string& whole, const auto& make) {
    for (size_t at = 0; at < whole.size();) {
      // Writers get whole characters.
      size_t size = std::min<size_t>(1 + rng.next_below(4), whole.size() - at);
      while (at + size < whole.size() && (static_cast<unsigned char>(whole[at + size]) >> 6) == 2)
        ++size;
      deltas.push_back(make(whole.substr(at, size)));
      at += size;
    }
  };
  cut(answer.reasoning, [](std::string piece) { return reasoning_delta(std::move(piece)); });
  cut(answer.content, [](std::string piece) { return content_delta(std::move(piece)); });
  int index = 0;
  for (const auto& [name, arguments] : answer.calls) {
    deltas.push_back(call_delta(index, name, ""));
    cut(arguments, [&](std::string piece) { return call_delta(index, "", std::move(piece)); });
    ++index;
  }
  return deltas;
}

}  // namespace fathom::serve
