#include "cli/serve_client/remote_chat.h"

#include <cstdio>
#include <optional>

#include "cli/io/answer_printer.h"
#include "cli/io/chat_commands.h"
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
Result<Json> members_of(const RemoteChatFlags& flags) {
  const SamplingFlags& s = flags.sampling;
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
  if (flags.prompt.thinking != "default") {
    words.emplace_back("thinking", Json::boolean(flags.prompt.thinking == "on"));
  }
  if (flags.prompt.keep_reasoning) words.emplace_back("drop_thinking", Json::boolean(false));
  if (!words.empty()) {
    members.emplace_back("chat_template_kwargs", Json::object(std::move(words)));
  }
  if (flags.prompt.effort != "default") {
    members.emplace_back("reasoning_effort", Json::string(flags.prompt.effort));
  }
  return Json::object(std::move(members));
}

class RemoteChat {
 public:
  RemoteChat(serve::HttpClient& client, serve::TextRequest request)
      : client_(client), request_(std::move(request)) {}

  void start_again(const std::string& system) {
    request_.messages.clear();
    if (!system.empty()) request_.messages.push_back(serve::chat_message("system", system));
  }

  const std::string& stats() const { return stats_; }

  Status say(const std::string& text) {
    request_.messages.push_back(serve::chat_message("user", text));
    const Exchange end = exchange();
    // What was said before Ctrl-C stays part of the conversation.
    if (end.status.ok()) {
      request_.messages.push_back(assistant_message(end.answer));
      return {};
    }
    request_.messages.pop_back();
    print_chat_problem(end.status.message());
    return {};
  }

 private:
  struct Exchange {
    serve::ReceivedAnswer answer;
    Status status;
  };

  Exchange exchange() {
    serve::AnswerReader reader(serve::TextRoute::kChat);
    serve::SseParser parser;
    serve::TokenTimes times(monotonic_ns());
    AnswerPrinter printer;
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
      printer.print(piece->reasoning, piece->content);
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
    call = client_.start({.method = "POST",
                          .path = std::string(text_route_path(serve::TextRoute::kChat)),
                          .body = request_body(serve::TextRoute::kChat, request_)},
                         std::move(listener));
    look();
    client_.run();
    printer.end();
    if (status != 200 && status != 0 && problem.ok()) {
      const serve::SentError sent = serve::read_error_body(error_body);
      problem = unavailable(str_cat(error_code_of(status, sent), ": ", sent.message));
    }
    if (problem.ok()) note_stats(times, reader.answer(), stopped);
    return {.answer = reader.answer(), .status = std::move(problem)};
  }

  // In the words of summary_of.
  void note_stats(const serve::TokenTimes& times,
                  const serve::ReceivedAnswer& answer,
                  bool stopped) {
    serve::LoadRecord record;
    fill_record(times, answer, 0, record);
    const double decode_s = static_cast<double>(record.latency_ns - record.ttft_ns) * 1e-9;
    stats_ = str_cat(record.prompt_tokens, " prompt tokens");
    if (answer.counted.cached)
      str_append(stats_, str_cat(" (", *answer.counted.cached, " cached)"));
    str_append(stats_, str_cat(", first token after ",
                               format_fixed(static_cast<double>(record.ttft_ns) * 1e-6, 0), " ms; ",
                               record.output_tokens, " tokens"));
    if (record.output_tokens > 1 && decode_s > 0) {
      const double rate = static_cast<double>(record.output_tokens - 1) / decode_s;
      str_append(stats_, str_cat(", ", format_fixed(rate, 1), " tokens/s"));
    }
    str_append(stats_, str_cat(" (", stopped ? "stopped" : answer.finish_reason, ")"));
  }

  serve::HttpClient& client_;
  serve::TextRequest request_;
  std::string stats_;
};

}  // namespace

Result<int> chat_with_server(const RemoteChatFlags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(Json extra, members_of(flags));
  Result<std::unique_ptr<serve::HttpClient>> client = connect_client(flags.url, flags.server);
  if (!client.ok()) return std::move(client).status().add_context("--url");
  FATHOM_ASSIGN(const ModelFacts model, find_model(**client, flags.model));
  install_interrupt_handler();
  if (!globals.quiet && stdout_is_terminal()) {
    std::printf("%s at %s. /help lists commands.\n", model.id.c_str(),
                (*client)->url().str().c_str());
  }
  RemoteChat chat(**client, {.model = model.id,
                             .max_tokens = flags.sampling.max_tokens.value_or(0),
                             .extra = std::move(extra)});
  FATHOM_TRY(run_chat_lines(
      flags.system, {.start_again = [&](const std::string& system) { chat.start_again(system); },
                     .stats = [&] { return chat.stats(); },
                     .say = [&](const std::string& text) { return chat.say(text); }}));
  return kExitOk;
}

}  // namespace fathom::cli
