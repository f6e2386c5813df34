// chat: a conversation on the terminal. Answers stream; Ctrl-C stops an answer, not the program.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <unistd.h>

#include "cli/command.h"
#include "cli/config/engine_flags.h"
#include "cli/engine/text_engine.h"
#include "cli/io/chat_input.h"
#include "cli/io/line_reader.h"
#include "cli/io/terminal.h"
#include "fathom/tokenizer/answer/answer_decoder.h"

namespace fathom::cli {
namespace {

struct Flags {
  SamplingFlags sampling;
  std::string system;
  ChatFlags prompt;
};

constexpr const char* kHelp =
    "  /clear   forget the conversation\n"
    "  /system TEXT   set the system message and start again\n"
    "  /stats   figures of the last answer\n"
    "  /help    this list\n"
    "  /exit    leave (or Ctrl-D)\n"
    "  Ctrl-C stops the answer.\n";

class ChatSession {
 public:
  ChatSession(const Flags& flags,
              Engine& engine,
              const ChatFormat& format,
              const ChatOptions& options,
              SamplingParams params)
      : flags_(flags),
        engine_(engine),
        format_(format),
        params_(std::move(params)),
        options_(options) {
    start_again(flags.system);
  }

  Status loop() {
    LineReader reader(isatty(STDIN_FILENO) == 1 ? "> " : "");
    for (;;) {
      FATHOM_ASSIGN(const std::optional<std::string> line, reader.next());
      (void)take_interrupt();  // what was pressed while a line was typed
      if (!line) break;
      if (line->empty()) continue;
      if (line->front() == '/') {
        if (!command(*line)) break;
        continue;
      }
      FATHOM_TRY(say(*line));
    }
    return {};
  }

 private:
  void start_again(const std::string& system) {
    conversation_.messages.clear();
    if (system.empty()) return;
    ChatMessage message;
    message.role = ChatRole::kSystem;
    message.content = system;
    conversation_.messages.push_back(std::move(message));
  }

  // False to leave.
  bool command(const std::string& line) {
    constexpr std::string_view kSystem = "/system ";
    if (line == "/exit" || line == "/quit") return false;
    if (line == "/clear") {
      start_again(flags_.system);
    } else if (line.starts_with(kSystem)) {
      start_again(line.substr(kSystem.size()));
    } else if (line == "/stats") {
      std::printf("%s\n", last_.tokens.empty() ? "no answer yet" : summary_of(last_).c_str());
    } else {
      std::printf("%s", kHelp);
    }
    return true;
  }

  Status say(const std::string& text) {
    ChatMessage user;
    user.role = ChatRole::kUser;
    user.content = text;
    conversation_.messages.push_back(std::move(user));
    FATHOM_ASSIGN(const PromptText prompt, format_.format(conversation_, options_));
    (void)take_interrupt();
    Result<Completion> answer =
        engine_.generate(prompt.encode(*engine_.tokenizer()), params_, [](const TextDelta& d) {
          std::fwrite(d.text.data(), 1, d.text.size(), stdout);
          std::fflush(stdout);
          return take_interrupt() ? Flow::kStop : Flow::kContinue;
        });
    std::printf("\n");
    if (!answer.ok()) {
      // The conversation goes on without the message that could not be answered.
      conversation_.messages.pop_back();
      if (answer.status().code() != StatusCode::kInvalidArgument) return std::move(answer).status();
      std::fprintf(stderr, "fathom: %s\nfathom: /clear starts again\n",
                   answer.status().message().c_str());
      return {};
    }
    last_ = std::move(answer).value();
    conversation_.messages.push_back(turn_of_last_answer());
    return {};
  }

  // Formats of DSML write reasoning and content apart; the others cut the text themselves.
  ChatMessage turn_of_last_answer() const {
    ChatMessage turn;
    turn.role = ChatRole::kAssistant;
    const AnswerGrammar grammar = format_.answer_grammar(options_);
    if (grammar.tool_calls != AnswerGrammar::ToolCalls::kDsml) {
      turn.content = last_.text;
      return turn;
    }
    AnswerDecoder decoder{*engine_.tokenizer(), grammar};
    const auto add = [&](const AnswerDelta& delta) {
      turn.reasoning_content += delta.reasoning;
      turn.content += delta.content;
    };
    for (const int32_t id : last_.tokens)
      add(decoder.push(id));
    add(decoder.finish());
    return turn;
  }

  const Flags& flags_;
  Engine& engine_;
  const ChatFormat& format_;
  SamplingParams params_;
  ChatOptions options_;
  ChatConversation conversation_;
  Completion last_;
};

Result<int> chat(const Flags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(TextModel model, open_text_model(globals.engine));
  const ModelSource& files = model.source.model;
  FATHOM_ASSIGN(const ChatFormat* const format,
                chat_format_of_model(files.config.model_type, model.options.model,
                                     *model.source.tokenizer, flags.prompt.chat_format));
  FATHOM_ASSIGN(const ChatOptions options, chat_options(flags.prompt));
  FATHOM_ASSIGN(SamplingParams params,
                sampling_params(flags.sampling, sampling_defaults(files.generation)));
  FATHOM_TRY(validate(params, model.source.tokenizer->vocab_size()));
  FATHOM_ASSIGN(const auto engine, load_engine(std::move(model), globals));
  install_interrupt_handler();
  if (!globals.quiet && stdout_is_terminal()) {
    std::printf("%s, prompt format %s, context %lld tokens. /help lists commands.\n",
                globals.engine.model.c_str(), std::string(format->name()).c_str(),
                static_cast<long long>(engine->memory_plan().max_model_len));
  }
  ChatSession session(flags, *engine, *format, options, std::move(params));
  FATHOM_TRY(session.loop());
  return kExitOk;
}

}  // namespace

Command add_chat(CLI::App& app, GlobalFlags& globals) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("chat", "Talk to a model on the terminal");
  sub->add_option("--system", flags->system, "System message");
  add_chat_flags(*sub, flags->prompt);
  add_sampling_flags(*sub, flags->sampling);
  add_engine_flags(*sub, globals.engine, kConverse,
                   {OptionGroup::kModel, OptionGroup::kDevice, OptionGroup::kNumbers,
                    OptionGroup::kMemory, OptionGroup::kRequests, OptionGroup::kKernels});
  return {sub, [flags](const GlobalFlags& given) { return chat(*flags, given); }};
}

}  // namespace fathom::cli
