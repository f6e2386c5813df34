// chat: a conversation on the terminal. Answers stream; Ctrl-C stops an answer, not the program.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/chat/answer_printer.h"
#include "cli/chat/chat_history.h"
#include "cli/chat/chat_model.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/chat_settings.h"
#include "cli/command.h"
#include "cli/config/engine_flags.h"
#include "cli/config/server_flags.h"
#include "cli/engine/text_engine.h"
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
  ChatSettings settings;
  std::string system;
  std::string url;
  ServerFlags server;
};

// The engine of this process, in the words of a chat.
class LocalModel final : public ChatModel {
 public:
  LocalModel(std::string name,
             Engine& engine,
             const ChatFormat& format,
             const SamplingParams& defaults)
      : name_(std::move(name)), engine_(engine), format_(format), defaults_(defaults) {}

  std::string name() const override { return name_; }

  ChatReading reading() const override { return format_.reading(); }

  bool may_recover() const override { return false; }

  NamedValues own_settings() const override {
    return {{"temperature", str_cat(defaults_.temperature)},
            {"top-p", str_cat(defaults_.top_p)},
            {"top-k", str_cat(defaults_.top_k)},
            {"min-p", str_cat(defaults_.min_p)},
            {"repetition-penalty", str_cat(defaults_.repetition_penalty)}};
  }

  Status check(const ChatSettings& settings) const override {
    FATHOM_TRY(chat_options(settings.prompt).status());
    FATHOM_ASSIGN(const SamplingParams params, sampling_params(settings.sampling, defaults_));
    return validate(params, engine_.tokenizer()->vocab_size());
  }

  Result<ChatTokens> count(const ChatConversation& seen,
                           const ChatSettings& settings) const override {
    ChatTokens tokens{.context = engine_.memory_plan().max_model_len};
    if (seen.messages.empty()) return tokens;
    FATHOM_ASSIGN(ChatOptions options, chat_options(settings.prompt));
    options.generation_prompt = GenerationPrompt::kNone;
    FATHOM_ASSIGN(const PromptText prompt, format_.format(seen, options));
    tokens.conversation = static_cast<int64_t>(prompt.encode(*engine_.tokenizer()).size());
    return tokens;
  }

  Result<ChatAnswer> answer(ChatConversation& seen, const ChatSettings& settings) override {
    const Tokenizer& tokenizer = *engine_.tokenizer();
    const int64_t context = engine_.memory_plan().max_model_len;
    FATHOM_ASSIGN(const ChatOptions options, chat_options(settings.prompt));
    FATHOM_ASSIGN(const SamplingParams params, sampling_params(settings.sampling, defaults_));
    FATHOM_ASSIGN(const FittedPrompt prompt,
                  fit_prompt(seen, format_, options, tokenizer,
                             {.context = context, .answer = params.max_tokens}));
    if (prompt.forgotten > 0) {
      log_warn("the context of ", context, " tokens is full: the oldest messages were forgotten, ",
               prompt.forgotten, " of them");
    }
    AnswerStream parts(tokenizer, grammar(options), {}, !params.stop.empty());
    AnswerPrinter printer(settings.view());
    ChatMessage turn;
    turn.role = ChatRole::kAssistant;
    (void)take_interrupt();
    const auto until_interrupt = [] { return take_interrupt() ? Flow::kStop : Flow::kContinue; };
    const auto print = [&](const TextDelta& d) {
      const AnswerDelta news = parts.read({.token = d.token,
                                           .text = d.text,
                                           .stop_text = d.stop_text,
                                           .last = d.finish != FinishReason::kNone});
      printer.print(news.reasoning, news.content, parts.reasoning_tokens());
      turn.reasoning_content += news.reasoning;
      turn.content += news.content;
      return until_interrupt();
    };
    Result<Completion> answer = engine_.generate(prompt.ids, params, print, until_interrupt);
    printer.end();
    if (!answer.ok()) return std::move(answer).status();
    return ChatAnswer{.turn = std::move(turn),
                      .tokens = static_cast<int64_t>(answer->tokens.size()),
                      .tokens_per_s = tokens_per_second(*answer),
                      .finish = std::string(finish_reason_name(answer->finish)),
                      .figures = summary_of(*answer)};
  }

 private:
  // No tools are offered here: what looks like a call is text, but where calls are tags within it.
  AnswerGrammar grammar(const ChatOptions& options) const {
    AnswerGrammar grammar = format_.answer_grammar(options);
    if (grammar.tool_calls != AnswerGrammar::ToolCalls::kDsml) {
      grammar.tool_calls = AnswerGrammar::ToolCalls::kNone;
    }
    return grammar;
  }

  std::string name_;
  Engine& engine_;
  const ChatFormat& format_;
  SamplingParams defaults_;
};

Result<int> chat(const Flags& flags, const CLI::App& app, const GlobalFlags& globals) {
  FATHOM_TRY(check_chat_format(flags.settings.prompt.chat_format));
  FATHOM_ASSIGN(TextModel model, open_text_model(globals.engine));
  const ModelSource& files = model.source.model;
  FATHOM_ASSIGN(const ChatFormat* const format,
                chat_format_of_model(files.config.model_type, model.options.model,
                                     *model.source.tokenizer, flags.settings.prompt.chat_format));
  FATHOM_TRY(chat_options(flags.settings.prompt).status());
  const SamplingParams defaults = sampling_defaults(files.generation);
  FATHOM_ASSIGN(const SamplingParams params, sampling_params(flags.settings.sampling, defaults));
  FATHOM_TRY(validate(params, model.source.tokenizer->vocab_size()));
  FATHOM_ASSIGN(const auto engine, load_engine(std::move(model), globals));
  install_interrupt_handler();
  if (!globals.quiet && stdout_is_terminal()) {
    std::printf("%s, prompt format %s, context %lld tokens. /help lists commands.\n",
                globals.engine.model.c_str(), std::string(format->name()).c_str(),
                static_cast<long long>(engine->memory_plan().max_model_len));
  }
  LocalModel answerer(globals.engine.model, *engine, *format, defaults);
  FATHOM_TRY(run_chat(answerer, {.system = flags.system,
                                 .settings = SettingsTable(app, flags.settings),
                                 .quiet = globals.quiet}));
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
  if (!flags.settings.prompt.chat_format.empty()) {
    return invalid_argument(str_cat("--chat-format is '", flags.settings.prompt.chat_format,
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

Result<int> chat_by_flags(const Flags& flags, const CLI::App& app, const GlobalFlags& globals) {
  if (flags.url.empty()) {
    FATHOM_TRY(check_local_flags(flags));
    return chat(flags, app, globals);
  }
  FATHOM_TRY(check_remote_flags(flags, globals));
#ifdef FATHOM_WITH_SERVER
  return chat_with_server({.url = flags.url,
                           .model = globals.engine.model,
                           .server = flags.server,
                           .start = {.system = flags.system,
                                     .settings = SettingsTable(app, flags.settings),
                                     .quiet = globals.quiet}});
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
  add_chat_settings(*sub, flags->settings);
  add_engine_flags(
      *sub, globals.engine, kConverse,
      {OptionGroup::kModel, OptionGroup::kDevice, OptionGroup::kNumbers, OptionGroup::kMemory,
       OptionGroup::kRequests, OptionGroup::kDrafts, OptionGroup::kKernels});
  return {sub,
          [flags, sub](const GlobalFlags& given) { return chat_by_flags(*flags, *sub, given); }};
}

}  // namespace fathom::cli
