#include "fathom/tokenizer/chat/dsml/merged_turns.h"

#include <algorithm>
#include <cstdint>
#include <map>

namespace fathom {
namespace {

using CallOrder = std::map<std::string_view, size_t>;

CallOrder order_of(const std::vector<ToolCall>& calls) {
  CallOrder order;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].id.empty()) order[calls[i].id] = i;
  }
  return order;
}

void sort_results(std::vector<TurnBlock>& blocks, const CallOrder& order) {
  if (order.empty()) return;
  std::vector<TurnBlock> results;
  for (const TurnBlock& block : blocks) {
    if (block.kind == TurnBlock::Kind::kToolResult) results.push_back(block);
  }
  const auto place = [&](const TurnBlock& block) {
    const auto found = order.find(block.call_id);
    return found == order.end() ? size_t{0} : found->second;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const TurnBlock& a, const TurnBlock& b) { return place(a) < place(b); });
  auto next = results.begin();
  for (TurnBlock& block : blocks) {
    if (block.kind == TurnBlock::Kind::kToolResult) block = *next++;
  }
}

}  // namespace

std::vector<MergedTurn> merge_turns(const std::vector<ChatMessage>& messages) {
  std::vector<MergedTurn> turns;
  for (const ChatMessage& message : messages) {
    const bool is_result = message.role == ChatRole::kTool;
    if (!is_result && message.role != ChatRole::kUser) {
      turns.push_back({&message, message.role, message.task, {}});
      continue;
    }
    const bool joins = !turns.empty() && turns.back().role == ChatRole::kUser &&
                       (is_result || turns.back().task == ChatTask::kNone);
    if (!joins) {
      const ChatTask task = is_result ? ChatTask::kNone : message.task;
      turns.push_back({&message, ChatRole::kUser, task, {}});
    }
    const auto kind = is_result ? TurnBlock::Kind::kToolResult : TurnBlock::Kind::kText;
    turns.back().blocks.push_back({kind, message.content, message.tool_call_id});
  }
  CallOrder order;
  for (MergedTurn& turn : turns) {
    if (!turn.message->tool_calls.empty()) order = order_of(turn.message->tool_calls);
    sort_results(turn.blocks, order);
  }
  return turns;
}

int64_t last_user_turn(const std::vector<MergedTurn>& turns) {
  for (size_t i = turns.size(); i-- > 0;) {
    if (turns[i].role == ChatRole::kUser || turns[i].role == ChatRole::kDeveloper) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

}  // namespace fathom
