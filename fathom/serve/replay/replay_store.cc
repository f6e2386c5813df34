#include "fathom/serve/replay/replay_store.h"

#include <algorithm>
#include <iterator>

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
                      static_cast<int64_t>(tokens.size()) <= max_tokens_;
  const std::lock_guard lock(mutex_);
  if (!usable || by_first_id_.contains(calls.front().id)) {
    ++stats_.refused;
    return;
  }
  stats_.tokens += static_cast<int64_t>(tokens.size());
  ++stats_.blocks;
  blocks_.push_front(std::make_shared<Block>(calls, std::move(tokens)));
  by_first_id_.emplace(calls.front().id, blocks_.begin());
  while (stats_.tokens > max_tokens_)
    remove(std::prev(blocks_.end()));
}

void ReplayStore::remove(Blocks::iterator place) {
  stats_.tokens -= static_cast<int64_t>((*place)->tokens.size());
  --stats_.blocks;
  by_first_id_.erase((*place)->calls.front().id);
  blocks_.erase(place);
}

std::shared_ptr<ReplayStore::Block> ReplayStore::find(const std::string& first_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_first_id_.find(first_id);
  return found != by_first_id_.end() ? *found->second : nullptr;
}

// The end if it went meanwhile.
ReplayStore::Blocks::iterator ReplayStore::place_of(const Block& block) {
  const auto found = by_first_id_.find(block.calls.front().id);
  const bool there = found != by_first_id_.end() && found->second->get() == &block;
  return there ? found->second : blocks_.end();
}

void ReplayStore::count_use(const Block& block) {
  const std::lock_guard lock(mutex_);
  ++stats_.recalled;
  const auto place = place_of(block);
  if (place != blocks_.end()) blocks_.splice(blocks_.begin(), blocks_, place);
}

void ReplayStore::refuse(const Block& block) {
  const std::lock_guard lock(mutex_);
  const auto place = place_of(block);
  if (place == blocks_.end()) return;
  ++stats_.refused;
  remove(place);
}

void ReplayStore::recall(ChatConversation& conversation) {
  for (ChatMessage& message : conversation.messages) {
    if (message.role != ChatRole::kAssistant || message.tool_calls.empty()) continue;
    const std::shared_ptr<Block> block = find(message.tool_calls.front().id);
    if (block == nullptr || !std::ranges::equal(block->calls, message.tool_calls, same_call))
      continue;
    if (!block->good) {
      if (!reads_as(block->tokens, block->calls)) {
        refuse(*block);
        continue;
      }
      block->good = true;
    }
    message.sampled_calls = {block->tokens, tokenizer_.decode(block->tokens)};
    count_use(*block);
  }
}

ReplayStats ReplayStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace fathom::serve
