#include "cli/chat/chat_session.h"

#include <cstdio>
#include <optional>

#include "cli/chat/chat_command.h"
#include "cli/chat/chat_history.h"
#include "cli/chat/conversation_file.h"
#include "cli/chat/input_lines.h"
#include "cli/chat/line_reader.h"
#include "cli/chat/text_editor.h"
#include "cli/flags.h"
#include "cli/io/interrupt.h"
#include "cli/io/terminal.h"
#include "fathom/os/file.h"

namespace fathom::cli {
namespace {

enum class Next { kGoOn, kLeave };

// "~/x" as the shell has it.
std::string path_of(const std::string& typed) {
  const std::string home = environment("HOME");
  return typed.starts_with("~/") && !home.empty() ? home + typed.substr(1) : typed;
}

// Whether a person may go on after it: the engine is as it was.
bool leaves_engine_alone(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kUnsupported:
    case StatusCode::kCorrupt:
    case StatusCode::kUnavailable:
    case StatusCode::kOverloaded:
    case StatusCode::kIo:
      return true;
    case StatusCode::kOutOfMemory:
    case StatusCode::kCancelled:
    case StatusCode::kNumerical:
    case StatusCode::kDeviceLost:
    case StatusCode::kInternal:
      return false;
  }
  return false;
}

class ChatSession {
 public:
  ChatSession(ChatModel& model, ChatStart start)
      : model_(model),
        settings_(std::move(start.settings)),
        first_system_(std::move(start.system)),
        remarks_(!start.quiet && reader_.typed() && stdout_is_terminal()) {
    start_again(first_system_);
  }

  Status run();

 private:
  Result<std::optional<ChatInput>> next_input();
  Result<Next> take(const ChatInput& input);
  Result<Next> take_command(const ChatCommand& command);

  void start_again(const std::string& system);
  Status say(const std::string& text);
  Status regenerate();
  Status edit(const std::string& text);
  Status answer(ChatHistory before, uint64_t retry = 0);
  Status show_system() const;
  Status set(const std::string& argument);
  Status save(const std::string& path);
  Status load(const std::string& path);
  Status show_tokens() const;

  void remark(const std::string& text) const {
    if (remarks_) print_remark(text);
  }

  ChatModel& model_;
  LineReader reader_;
  InputLines lines_;
  SettingsTable settings_;
  std::string first_system_;  // what /clear goes back to
  bool remarks_;
  ChatHistory history_;
  std::string figures_;   // of the last answer
  uint64_t retries_ = 0;  // of the last message
  bool answer_failed_ = false;
};

Status ChatSession::run() {
  for (;;) {
    FATHOM_ASSIGN(const std::optional<ChatInput> input, next_input());
    if (!input) return {};
    answer_failed_ = false;
    Result<Next> next = take(*input);
    if (next.ok()) {
      if (*next == Next::kLeave) return {};
      continue;
    }
    Status problem = std::move(next).status();
    const bool recovers = answer_failed_ && model_.may_recover();
    const bool goes_on = recovers || (reader_.typed() && leaves_engine_alone(problem.code()));
    if (!goes_on) return problem;
    std::fprintf(stderr, "fathom: %s\n%s", problem.message().c_str(),
                 answer_failed_ ? "fathom: /clear starts again\n" : "");
  }
}

// The next message or command that says something; nothing at the end.
Result<std::optional<ChatInput>> ChatSession::next_input() {
  for (;;) {
    FATHOM_ASSIGN(std::optional<TypedLine> line, reader_.next(lines_.open() ? ". " : "> "));
    (void)take_interrupt();  // what was pressed while a line was typed
    if (line && line->interrupted) {
      lines_.drop();
      continue;
    }
    if (!line && lines_.in_block() && !reader_.typed()) {
      return invalid_argument(
          "standard input ends within a message; its last line ends with \"\"\"");
    }
    std::optional<ChatInput> input = line ? lines_.add(line->text) : lines_.finish();
    if (input && !input->text.empty()) {
      reader_.remember(input->text);
      return input;
    }
    if (!line) return std::optional<ChatInput>{};
  }
}

Result<Next> ChatSession::take(const ChatInput& input) {
  if (input.kind == ChatInput::Kind::kMessage) {
    FATHOM_TRY(say(input.text));
    return Next::kGoOn;
  }
  FATHOM_ASSIGN(const ChatCommand command, parse_chat_command(input.text));
  return take_command(command);
}

Result<Next> ChatSession::take_command(const ChatCommand& command) {
  switch (command.verb) {
    case ChatVerb::kHelp:
      std::printf("%s", chat_help().c_str());
      return Next::kGoOn;
    case ChatVerb::kClear:
      start_again(first_system_);
      remark("the conversation is forgotten");
      return Next::kGoOn;
    case ChatVerb::kSystem:
      if (command.argument.empty()) {
        FATHOM_TRY(show_system());
        return Next::kGoOn;
      }
      start_again(command.argument);
      remark("a new conversation with this system message");
      return Next::kGoOn;
    case ChatVerb::kRegenerate:
      FATHOM_TRY(regenerate());
      return Next::kGoOn;
    case ChatVerb::kEdit:
      FATHOM_TRY(edit(command.argument));
      return Next::kGoOn;
    case ChatVerb::kSave:
      FATHOM_TRY(save(path_of(command.argument)));
      return Next::kGoOn;
    case ChatVerb::kLoad:
      FATHOM_TRY(load(path_of(command.argument)));
      return Next::kGoOn;
    case ChatVerb::kSet:
      FATHOM_TRY(set(command.argument));
      return Next::kGoOn;
    case ChatVerb::kTokens:
      FATHOM_TRY(show_tokens());
      return Next::kGoOn;
    case ChatVerb::kStats:
      std::printf("%s\n", figures_.empty() ? "no answer yet" : figures_.c_str());
      return Next::kGoOn;
    case ChatVerb::kExit:
      return Next::kLeave;
  }
  return Next::kGoOn;
}

void ChatSession::start_again(const std::string& system) {
  history_ = {};
  if (!system.empty()) history_.add({.role = ChatRole::kSystem, .content = system});
}

Status ChatSession::say(const std::string& text) {
  ChatHistory before = history_;
  history_.add({.role = ChatRole::kUser, .content = text});
  return answer(std::move(before));
}

Status ChatSession::regenerate() {
  if (history_.last_question() == nullptr) {
    return invalid_argument("there is no message yet that /regenerate could answer again");
  }
  ChatHistory before = history_;
  history_.drop_answer(ChatHistory::Question::kKeep);
  return answer(std::move(before), retries_ + 1);
}

Status ChatSession::edit(const std::string& text) {
  const ChatMessage* last = history_.last_question();
  if (last == nullptr) return invalid_argument("there is no message yet that /edit could change");
  std::string changed = text;
  if (text.empty()) {
    if (!reader_.typed() || !stdout_is_terminal()) {
      return invalid_argument("/edit opens an editor on a terminal only; here it needs a text");
    }
    FATHOM_ASSIGN(changed, edit_text(last->content));
    if (changed.empty() || changed == last->content) {
      remark("nothing was changed");
      return {};
    }
    print_remark(str_cat("> ", changed));
  }
  ChatHistory before = history_;
  history_.drop_answer(ChatHistory::Question::kToo);
  history_.add({.role = ChatRole::kUser, .content = changed});
  return answer(std::move(before));
}

// Answers the last message. Where that fails, the conversation is as it was before it.
// A given seed is that of the first answer to a message; each further one takes the next, or it
// would say the same.
Status ChatSession::answer(ChatHistory before, uint64_t retry) {
  retries_ = retry;
  ChatSettings settings = settings_.values();
  if (settings.sampling.seed) *settings.sampling.seed += retry;
  Result<ChatAnswer> answer = model_.answer(history_.seen, settings);
  if (!answer.ok()) {
    history_ = std::move(before);
    answer_failed_ = true;
    return std::move(answer).status();
  }
  history_.add(answer->turn);
  figures_ = answer->figures;
  std::string below = str_cat("(", answer->tokens, " tokens");
  if (answer->tokens_per_s > 0) {
    str_append(below, str_cat(", ", format_fixed(answer->tokens_per_s, 1), " tokens/s"));
  }
  if (answer->finish != "stop") str_append(below, str_cat(", ", answer->finish));
  remark(below + ")");
  return {};
}

Status ChatSession::show_system() const {
  const auto& messages = history_.whole.messages;
  const bool has = !messages.empty() && messages.front().role == ChatRole::kSystem;
  write_text(has ? messages.front().content : "no system message");
  std::printf("\n");
  return {};
}

Status ChatSession::set(const std::string& argument) {
  const size_t space = argument.find_first_of(" \t");
  const std::string name = argument.substr(0, space);
  if (space == std::string::npos) {
    FATHOM_ASSIGN(const std::string shown, settings_.show(name, model_.own_settings()));
    write_text(shown);
    return {};
  }
  const std::string value = argument.substr(argument.find_first_not_of(" \t", space));
  FATHOM_ASSIGN(SettingsTable changed, settings_.with(name, value));
  FATHOM_TRY(model_.check(changed.values()));
  settings_ = std::move(changed);
  FATHOM_ASSIGN(std::string shown, settings_.show(name, model_.own_settings()));
  shown.pop_back();  // its newline
  remark(shown);
  return {};
}

Status ChatSession::save(const std::string& path) {
  if (history_.whole.messages.empty()) {
    return invalid_argument("the conversation is empty, there is nothing to save");
  }
  FATHOM_TRY(save_conversation(path, history_.whole, model_.name()));
  remark(str_cat(history_.whole.messages.size(), " messages saved to ", path));
  return {};
}

Status ChatSession::load(const std::string& path) {
  FATHOM_ASSIGN(ChatConversation conversation, load_conversation(path, model_.reading()));
  // What the model's prompt has no place for is refused now and not at the next answer.
  const Result<ChatTokens> tokens = model_.count(conversation, settings_.values());
  if (!tokens.ok() && tokens.status().code() != StatusCode::kUnavailable) {
    return corrupt(str_cat(path, ": ", tokens.status().message()));
  }
  history_ = {.whole = conversation, .seen = conversation};
  remark(str_cat(conversation.messages.size(), " messages from ", path));
  return {};
}

Status ChatSession::show_tokens() const {
  FATHOM_ASSIGN(const ChatTokens tokens, model_.count(history_.seen, settings_.values()));
  std::printf("%lld tokens of conversation", static_cast<long long>(tokens.conversation));
  if (tokens.context) {
    const int64_t left = std::max<int64_t>(0, *tokens.context - tokens.conversation);
    std::printf(", a context of %lld, %lld left", static_cast<long long>(*tokens.context),
                static_cast<long long>(left));
  }
  const size_t forgotten = history_.whole.messages.size() - history_.seen.messages.size();
  if (forgotten > 0) std::printf("; %zu messages forgotten", forgotten);
  std::printf("\n");
  return {};
}

}  // namespace

Status run_chat(ChatModel& model, ChatStart start) {
  return ChatSession(model, std::move(start)).run();
}

}  // namespace fathom::cli
