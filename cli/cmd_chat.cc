// chat: a conversation on the terminal. Answers stream; Ctrl-C stops an answer, not the program.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/config/engine_flags.h"
#include "cli/config/server_flags.h"
#include "cli/engine/chat_history.h"
#include "cli/engine/text_engine.h"
#include "cli/io/answer_printer.h"
#include "cli/io/chat_commands.h"
#include "cli/io/chat_input.h"
#include "cli/io/interrupt.h"
#include "cli/io/terminal.h"
#include "cli/not_empty.h"
#include "fathom/base/log.h"
#include "fathom/os/file.h"
#include "fathom/tokenizer/answer/answer_stream.h"
#ifdef FATHOM_WITH_SERVER
#include "cli/serve_client/remote_chat.h"
#endif

namespace fathom::cli {
namespace {

struct Flags {
  SamplingFlags sampling;
  std::string system;
  ChatFlags prompt;
  std::string url;
  ServerFlags server;
};

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
        options_(options) {}

  Status loop() {
    return run_chat_lines(
        flags_.system,
        {.start_again = [this](const std::string& system) { start_again(system); },
         .stats = [this] { return last_.tokens.empty() ? std::string{} : summary_of(last_); },
         .say = [this](const std::string& text) { return say(text); }});
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

  Status say(const std::string& text) {
    ChatMessage user;
    user.role = ChatRole::kUser;
    user.content = text;
    conversation_.messages.push_back(std::move(user));
    Result<ChatMessage> turn = answer();
    if (!turn.ok()) {
      // The conversation goes on without the message that could not be answered.
      conversation_.messages.pop_back();
      return std::move(turn).status();
    }
    conversation_.messages.push_back(std::move(turn).value());
    return {};
  }

  // The turn of the assistant, shown while it comes.
  Result<ChatMessage> answer() {
    const Tokenizer& tokenizer = *engine_.tokenizer();
    FATHOM_ASSIGN(
        const FittedPrompt prompt,
        fit_prompt(conversation_, format_, options_, tokenizer,
                   {.context = engine_.memory_plan().max_model_len, .answer = params_.max_tokens}));
    if (prompt.forgotten > 0) {
      log_warn("the context of ", engine_.memory_plan().max_model_len,
               " tokens is full: the oldest messages were forgotten, ", prompt.forgotten,
               " of them");
    }
    AnswerStream parts(tokenizer, grammar(), {}, !params_.stop.empty());
    AnswerPrinter printer;
    ChatMessage turn;
    turn.role = ChatRole::kAssistant;
    (void)take_interrupt();
    Result<Completion> answer = engine_.generate(prompt.ids, params_, [&](const TextDelta& d) {
      const AnswerDelta news = parts.read({.token = d.token,
                                           .text = d.text,
                                           .stop_text = d.stop_text,
                                           .last = d.finish != FinishReason::kNone});
      printer.print(news.reasoning, news.content);
      turn.reasoning_content += news.reasoning;
      turn.content += news.content;
      return take_interrupt() ? Flow::kStop : Flow::kContinue;
    });
    printer.end();
    if (!answer.ok()) return std::move(answer).status();
    last_ = std::move(answer).value();
    return turn;
  }

  // No tools are offered here: what looks like a call is text, but where calls are tags within it.
  AnswerGrammar grammar() const {
    AnswerGrammar grammar = format_.answer_grammar(options_);
    if (grammar.tool_calls != AnswerGrammar::ToolCalls::kDsml) {
      grammar.tool_calls = AnswerGrammar::ToolCalls::kNone;
    }
    return grammar;
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

// A server has its model and its engine already.
Status check_remote_flags(const Flags& flags, const GlobalFlags& globals) {
  const EngineOptions defaults;
  if (path_kind(globals.engine.model) != PathKind::kMissing && !globals.engine.model.empty()) {
    return invalid_argument(str_cat("MODEL is '", globals.engine.model, "', and --url ", flags.url,
                                    " talks to a model that a server has loaded; --model NAME "
                                    "takes one of the names it serves"));
  }
  for (const OptionInfo& row : option_table()) {
    const bool machine = row.group == OptionGroup::kMachine || row.flag == "model";
    if (machine || row.get(globals.engine) == row.get(defaults)) continue;
    return invalid_argument(str_cat("--", row.flag, " is ", row.get(globals.engine),
                                    ", which changes nothing with --url: the server decides"));
  }
  if (!flags.prompt.chat_format.empty()) {
    return invalid_argument(str_cat("--chat-format is '", flags.prompt.chat_format,
                                    "', which changes nothing with --url: the server decides"));
  }
  return {};
}

Status check_local_flags(const Flags& flags) {
  const ServerFlags defaults;
  const bool given = !flags.server.api_key_file.empty() || flags.server.insecure ||
                     flags.server.timeout_s != defaults.timeout_s;
  if (!given) return {};
  return invalid_argument("--api-key-file, --insecure and --timeout are for --url");
}

Result<int> chat_by_flags(const Flags& flags, const GlobalFlags& globals) {
  if (flags.url.empty()) {
    FATHOM_TRY(check_local_flags(flags));
    return chat(flags, globals);
  }
  FATHOM_TRY(check_remote_flags(flags, globals));
#ifdef FATHOM_WITH_SERVER
  return chat_with_server({.url = flags.url,
                           .model = globals.engine.model,
                           .system = flags.system,
                           .server = flags.server,
                           .sampling = flags.sampling,
                           .prompt = flags.prompt},
                          globals);
#else
  return no_http("chat --url");
#endif
}

}  // namespace

Command add_chat(CLI::App& app, GlobalFlags& globals) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("chat", "Talk to a model on the terminal");
  sub->add_option("--system", flags->system, "System message")->check(empty_is_a_value());
  sub->add_option("--url", flags->url,
                  "Talk to the server at http://HOST:PORT; --model NAME picks one of its models")
      ->check(not_empty("an address"));
  add_server_flags(*sub, flags->server);
  add_chat_flags(*sub, flags->prompt);
  add_sampling_flags(*sub, flags->sampling);
  add_engine_flags(
      *sub, globals.engine, kConverse,
      {OptionGroup::kModel, OptionGroup::kDevice, OptionGroup::kNumbers, OptionGroup::kMemory,
       OptionGroup::kRequests, OptionGroup::kDrafts, OptionGroup::kKernels});
  return {sub, [flags](const GlobalFlags& given) { return chat_by_flags(*flags, given); }};
}

}  // namespace fathom::cli
