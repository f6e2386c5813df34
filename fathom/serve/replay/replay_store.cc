#include "fathom/serve/replay/replay_store.h"

#include <algorithm>

#include "fathom/text/json.h"
#include "fathom/tokenizer/answer/answer_decoder.h"

namespace fathom::serve {
namespace {

// Clients may print the arguments anew, with other blanks.
bool same_arguments(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const Result<Json> left = parse_json(a, {}, "arguments");
  const Result<Json> right = parse_json(b, {}, "arguments");
  return left.ok() && right.ok() && *left == *right;
}

bool same_call(const ToolCall& a, const ToolCall& b) {
  return a.id == b.id && a.name == b.name && same_arguments(a.arguments, b.arguments);
}

}  // namespace

ReplayStore::ReplayStore(const Tokenizer& tokenizer, AnswerGrammar grammar, int64_t max_tokens)
    : tokenizer_(tokenizer), grammar_(grammar), max_tokens_(max_tokens) {
  grammar_.starts_in_reasoning = false;
  grammar_.continues_turn = false;
}

// Read alone the ids must give the calls, no other text, and nothing to put right: then a prompt
// that holds them says what a rendering of the calls says.
bool ReplayStore::reads_as(const std::vector<int32_t>& tokens,
                           const std::vector<ToolCall>& calls) const {
  AnswerDecoder decoder(tokenizer_, grammar_);
  std::vector<ToolCall> read;
  bool clean = true;
  const auto take = [&](const AnswerDelta& delta) {
    clean = clean && delta.content.empty() && delta.reasoning.empty();
    for (const ToolCallDelta& news : delta.tool_calls) {
      const auto index = static_cast<size_t>(news.index);
      if (index >= read.size()) read.resize(index + 1);
      read[index].name += news.name;
      read[index].arguments += news.arguments;
    }
  };
  if (grammar_.tool_calls == AnswerGrammar::ToolCalls::kDsml) {
    for (const int32_t id : tokenizer_.encode("<"))  // stands before the first ｜DSML｜
      take(decoder.push(id));
  }
  for (const int32_t id : tokens)
    take(decoder.push(id));
  take(decoder.finish());
  return clean && decoder.repairs() == AnswerRepairs{} &&
         std::ranges::equal(read, calls, [](const ToolCall& a, const ToolCall& b) {
           return a.name == b.name && a.arguments == b.arguments;
         });
}

void ReplayStore::record(const std::vector<ToolCall>& calls, std::vector<int32_t> tokens) {
  const bool usable = !calls.empty() && !calls.front().id.empty() && !tokens.empty() &&
                      static_cast<int64_t>(tokens.size()) <= max_tokens_ && reads_as(tokens, calls);
  const std::lock_guard lock(mutex_);
  if (!usable || by_first_id_.contains(calls.front().id)) {
    ++stats_.refused;
    return;
  }
  stats_.tokens += static_cast<int64_t>(tokens.size());
  ++stats_.blocks;
  blocks_.push_front({calls, std::move(tokens)});
  by_first_id_.emplace(calls.front().id, blocks_.begin());
  make_room();
}

void ReplayStore::make_room() {
  while (stats_.tokens > max_tokens_) {
    const Block& oldest = blocks_.back();
    stats_.tokens -= static_cast<int64_t>(oldest.tokens.size());
    --stats_.blocks;
    by_first_id_.erase(oldest.calls.front().id);
    blocks_.pop_back();
  }
}

void ReplayStore::recall(ChatConversation& conversation) {
  const std::lock_guard lock(mutex_);
  for (ChatMessage& message : conversation.messages) {
    if (message.role != ChatRole::kAssistant || message.tool_calls.empty()) continue;
    const auto found = by_first_id_.find(message.tool_calls.front().id);
    if (found == by_first_id_.end()) continue;
    const Block& block = *found->second;
    if (!std::ranges::equal(block.calls, message.tool_calls, same_call)) continue;
    message.sampled_calls = {block.tokens, tokenizer_.decode(block.tokens)};
    blocks_.splice(blocks_.begin(), blocks_, found->second);
    ++stats_.recalled;
  }
}

ReplayStats ReplayStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace fathom::serve
