#include "cli/serve_client/remote_chat.h"

#include <cstdio>
#include <optional>

#include "cli/chat/answer_printer.h"
#include "cli/chat/chat_model.h"
#include "cli/command.h"
#include "cli/io/interrupt.h"
#include "cli/io/terminal.h"
#include "cli/serve_client/server_facts.h"
#include "fathom/os/clock.h"
#include "fathom/serve/client/request_body.h"
#include "fathom/serve/load/load_record.h"
#include "fathom/serve/sse.h"

namespace fathom::cli {

using serve::CallFault;

namespace {

constexpr int64_t kLookForInterruptNs = 20'000'000;
constexpr size_t kMaxErrorBytes = 64 * 1024;

// What flags say of sampling and thinking, as members of a request.
Result<Json> members_of(const ChatSettings& settings) {
  const SamplingFlags& s = settings.sampling;
  FATHOM_ASSIGN(const SamplingParams checked, sampling_params(s, {}));
  FATHOM_TRY(validate(checked, INT32_MAX));
  std::vector<JsonMember> members;
  const auto real = [&](const char* name, const std::optional<double>& value) {
    if (value) members.emplace_back(name, Json::number(*value));
  };
  real("temperature", s.temperature);
  real("top_p", s.top_p);
  real("min_p", s.min_p);
  real("presence_penalty", s.presence_penalty);
  real("frequency_penalty", s.frequency_penalty);
  real("repetition_penalty", s.repetition_penalty);
  if (s.top_k) members.emplace_back("top_k", Json::integer(*s.top_k));
  if (s.seed) {
    members.emplace_back("seed", *s.seed <= INT64_MAX ? Json::integer(static_cast<int64_t>(*s.seed))
                                                      : Json::unsigned_integer(*s.seed));
  }
  if (s.ignore_eos) members.emplace_back("ignore_eos", Json::boolean(true));
  if (!s.stop.empty()) {
    std::vector<Json> stops;
    for (const std::string& stop : s.stop)
      stops.push_back(Json::string(stop));
    members.emplace_back("stop", Json::array(std::move(stops)));
  }
  if (!checked.logit_bias.empty()) {
    std::vector<JsonMember> biases;
    for (const auto& [id, bias] : checked.logit_bias)
      biases.emplace_back(str_cat(id), Json::number(static_cast<double>(bias)));
    members.emplace_back("logit_bias", Json::object(std::move(biases)));
  }
  std::vector<JsonMember> words;
  if (settings.prompt.thinking != "default") {
    words.emplace_back("thinking", Json::boolean(settings.prompt.thinking == "on"));
  }
  if (settings.prompt.keep_reasoning) words.emplace_back("drop_thinking", Json::boolean(false));
  if (!words.empty()) {
    members.emplace_back("chat_template_kwargs", Json::object(std::move(words)));
  }
  if (settings.prompt.effort != "default") {
    members.emplace_back("reasoning_effort", Json::string(settings.prompt.effort));
  }
  return Json::object(std::move(members));
}

// A message as requests have it.
Json as_sent(const ChatMessage& message) {
  if (message.role != ChatRole::kAssistant) {
    return serve::chat_message(chat_role_name(message.role), message.content);
  }
  serve::ReceivedAnswer turn;
  turn.content = message.content;
  turn.reasoning = message.reasoning_content;
  return serve::assistant_message(turn);
}

std::vector<Json> as_sent(const ChatConversation& conversation) {
  std::vector<Json> messages;
  for (const ChatMessage& message : conversation.messages)
    messages.push_back(as_sent(message));
  return messages;
}

// A model of a server, in the words of a chat.
class RemoteModel final : public ChatModel {
 public:
  RemoteModel(serve::HttpClient& client, std::string id) : client_(client), id_(std::move(id)) {}

  std::string name() const override { return id_; }

  ChatReading reading() const override { return {}; }

  NamedValues own_settings() const override { return {}; }

  bool may_recover() const override { return true; }

  Status check(const ChatSettings& settings) const override {
    return members_of(settings).status();
  }

  Result<ChatTokens> count(const ChatConversation& seen, const ChatSettings&) const override {
    if (seen.messages.empty()) return ChatTokens{};
    const std::optional<CountedConversation> counted = count_there(client_, id_, as_sent(seen));
    if (!counted) {
      return unavailable(
          str_cat(client_.url().str(), " does not count the tokens of a conversation (/tokenize)"));
    }
    return ChatTokens{.conversation = counted->tokens, .context = counted->max_model_len};
  }

  // What was said before Ctrl-C stays part of the conversation.
  Result<ChatAnswer> answer(ChatConversation& seen, const ChatSettings& settings) override {
    FATHOM_ASSIGN(Json extra, members_of(settings));
    serve::AnswerReader reader(serve::TextRoute::kChat);
    serve::SseParser parser;
    serve::TokenTimes times(monotonic_ns());
    AnswerPrinter printer(settings.view());
    int64_t reasoning_pieces = 0;
    Status problem;
    std::string error_body;
    int status = 0;
    bool ended = false, stopped = false;
    serve::CallId call = 0;
    serve::CallListener listener;
    const auto take = [&](const serve::SseEvent& event) {
      if (!problem.ok()) return;
      Result<serve::AnswerPiece> piece = reader.read(event);
      if (!piece.ok()) {
        problem = std::move(piece).status();
        return;
      }
      times.note(piece->kind, monotonic_ns());
      if (!piece->reasoning.empty()) ++reasoning_pieces;
      printer.print(piece->reasoning, piece->content, reasoning_pieces);
    };
    listener.on_head = [&](const serve::ReplyHead& head) { status = head.status; };
    listener.on_body = [&](std::string_view bytes) {
      if (status != 200) {
        error_body += bytes.substr(0, kMaxErrorBytes - std::min(error_body.size(), kMaxErrorBytes));
        return;
      }
      Status parsed = parser.push(bytes, take);
      if (problem.ok() && !parsed.ok()) problem = std::move(parsed);
    };
    listener.on_end = [&](CallFault fault, const Status& why) {
      ended = true;
      if (fault != CallFault::kNone && problem.ok() && !stopped) {
        problem = Status::error(why.code(), why.message());
      }
    };
    const std::function<void()> look = [&] {
      if (ended) return;
      if (take_interrupt()) {
        stopped = true;
        client_.cancel(call);
      }
      client_.after(kLookForInterruptNs, look);
    };
    (void)take_interrupt();
    const serve::TextRequest request{.model = id_,
                                     .messages = as_sent(seen),
                                     .max_tokens = settings.sampling.max_tokens.value_or(0),
                                     .extra = std::move(extra)};
    call = client_.start({.method = "POST",
                          .path = std::string(text_route_path(serve::TextRoute::kChat)),
                          .body = request_body(serve::TextRoute::kChat, request)},
                         std::move(listener));
    look();
    client_.run();
    printer.end();
    if (status != 200 && status != 0 && problem.ok()) {
      const serve::SentError sent = serve::read_error_body(error_body);
      problem = unavailable(str_cat(error_code_of(status, sent), ": ", sent.message));
    }
    if (!problem.ok()) return problem;
    return answer_of(times, reader.answer(), stopped);
  }

 private:
  // The figures in the words of summary_of.
  static ChatAnswer answer_of(const serve::TokenTimes& times,
                              const serve::ReceivedAnswer& answer,
                              bool stopped) {
    serve::LoadRecord record;
    fill_record(times, answer, 0, record);
    const double decode_s = static_cast<double>(record.latency_ns - record.ttft_ns) * 1e-9;
    ChatAnswer out{.turn = {.role = ChatRole::kAssistant,
                            .content = answer.content,
                            .reasoning_content = answer.reasoning},
                   .tokens = record.output_tokens,
                   .finish = stopped ? "stopped" : answer.finish_reason};
    if (record.output_tokens > 1 && decode_s > 0) {
      out.tokens_per_s = static_cast<double>(record.output_tokens - 1) / decode_s;
    }
    std::string& figures = out.figures;
    figures = str_cat(record.prompt_tokens, " prompt tokens");
    if (answer.counted.cached)
      str_append(figures, str_cat(" (", *answer.counted.cached, " cached)"));
    str_append(figures, str_cat(", first token after ",
                                format_fixed(static_cast<double>(record.ttft_ns) * 1e-6, 0),
                                " ms; ", record.output_tokens, " tokens"));
    if (out.tokens_per_s > 0) {
      str_append(figures, str_cat(", ", format_fixed(out.tokens_per_s, 1), " tokens/s"));
    }
    str_append(figures, str_cat(" (", out.finish, ")"));
    return out;
  }

  serve::HttpClient& client_;
  std::string id_;
};

}  // namespace

Result<int> chat_with_server(RemoteChatFlags flags) {
  FATHOM_TRY(members_of(flags.start.settings.values()).status());
  Result<std::unique_ptr<serve::HttpClient>> client = connect_client(flags.url, flags.server);
  if (!client.ok()) return std::move(client).status().add_context("--url");
  FATHOM_ASSIGN(const ModelFacts facts, find_model(**client, flags.model));
  install_interrupt_handler();
  if (!flags.start.quiet && stdout_is_terminal()) {
    std::printf("%s at %s. /help lists commands.\n", facts.id.c_str(),
                (*client)->url().str().c_str());
  }
  RemoteModel model(**client, facts.id);
  FATHOM_TRY(run_chat(model, std::move(flags.start)));
  return kExitOk;
}

}  // namespace fathom::cli
