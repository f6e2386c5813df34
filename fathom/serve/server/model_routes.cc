// Routes that ask the model: bodies are read on workers, answers run, writers write.
#include <memory>
#include <variant>

#include "fathom/serve/anthropic/messages_request.h"
#include "fathom/serve/anthropic/messages_writer.h"
#include "fathom/serve/openai/chat/chat_request.h"
#include "fathom/serve/openai/chat/chat_writer.h"
#include "fathom/serve/openai/completions/completion_request.h"
#include "fathom/serve/openai/completions/completion_writer.h"
#include "fathom/serve/openai/small_routes.h"
#include "fathom/serve/responses/responses_request.h"
#include "fathom/serve/responses/responses_writer.h"
#include "fathom/serve/server/routes.h"
#include "fathom/serve/server/server.h"

namespace fathom::serve {
namespace {

// Answers over HTTP with a body that was read, or with why it was not.
template <class Request, class Run>
void answer_or_refuse(const ExchangePtr& exchange,
                      std::variant<Request, ApiError> read,
                      const Server& server,
                      Run&& run) {
  if (auto* error = std::get_if<ApiError>(&read)) {
    if (server.parts().count_error) server.parts().count_error(*error);
    exchange->reply(error_reply(*exchange, *error));
    return;
  }
  run(std::get<Request>(std::move(read)));
}

// Tenants share prefixes only where the operator says so.
std::string scope_of(const Server& server, const Caller& caller) {
  return server.settings().shared_prefix_cache ? std::string() : caller.key;
}

void add_chat(Server& server, Router& router) {
  router.add(
      {.method = "POST",
       .path = "/v1/chat/completions",
       .handler = [&server](const ExchangePtr& exchange, const Caller& caller) {
         answer_or_refuse(
             exchange,
             parse_chat_request(exchange->request(), server.model(), scope_of(server, caller)),
             server, [&](ChatRequest request) {
               request.answer.client = caller.key;
               run_answer(server.answer_host(), exchange, {std::move(request.answer)},
                          std::make_unique<ChatWriter>(exchange, std::move(request.style)));
             });
       }});
  router.add({.method = "POST",
              .path = "/v1/completions",
              .handler = [&server](const ExchangePtr& exchange, const Caller& caller) {
                answer_or_refuse(
                    exchange,
                    parse_completion_request(exchange->request(), server.model(),
                                             scope_of(server, caller)),
                    server, [&](CompletionRequest request) {
                      for (AnswerSpec& spec : request.answers)
                        spec.client = caller.key;
                      run_answer(
                          server.answer_host(), exchange, std::move(request.answers),
                          std::make_unique<CompletionWriter>(exchange, std::move(request.style)));
                    });
              }});
}

void add_messages(Server& server, Router& router) {
  router.add({.method = "POST",
              .path = "/v1/messages",
              .handler = [&server](const ExchangePtr& exchange, const Caller& caller) {
                answer_or_refuse(
                    exchange,
                    parse_messages_request(exchange->request(), server.model(),
                                           scope_of(server, caller), server.signer()),
                    server, [&](MessagesRequest request) {
                      request.answer.client = caller.key;
                      run_answer(
                          server.answer_host(), exchange, {std::move(request.answer)},
                          std::make_unique<MessagesWriter>(exchange, std::move(request.style)));
                    });
              }});
  router.add({.method = "POST",
              .path = "/v1/messages/count_tokens",
              .handler = [&server](const ExchangePtr& exchange, const Caller&) {
                exchange->reply(count_message_tokens(exchange->request(), server.model(),
                                                     server.signer(), exchange->id()));
              }});
}

void add_responses(Server& server, Router& router) {
  router.add(
      {.method = "POST",
       .path = "/v1/responses",
       .handler = [&server](const ExchangePtr& exchange, const Caller& caller) {
         answer_or_refuse(
             exchange,
             parse_responses_request(exchange->request(), server.model(), scope_of(server, caller)),
             server, [&](ResponsesRequest request) {
               request.answer.client = caller.key;
               run_answer(server.answer_host(), exchange, {std::move(request.answer)},
                          std::make_unique<ResponsesWriter>(exchange, std::move(request.style)));
             });
       }});
}

using Reply = HttpReply (*)(const HttpRequest&, const ServedModel&);

void add_reply(Server& server, Router& router, std::string_view path, Reply reply) {
  router.add({.method = "POST",
              .path = path,
              .handler = [&server, reply](const ExchangePtr& exchange, const Caller&) {
                exchange->reply(reply(exchange->request(), server.model()));
              }});
}

void add_texts(Server& server, Router& router) {
  add_reply(server, router, "/tokenize", tokenize);
  add_reply(server, router, "/detokenize", detokenize);
  add_reply(server, router, "/v1/completions/render", render_completion);
  add_reply(server, router, "/v1/chat/completions/render", render_chat);
  add_reply(server, router, "/v1/chat/completions/input_tokens", count_chat_tokens);
  add_reply(server, router, "/v1/responses/input_tokens", count_response_tokens);
}

void add_models(Server& server, Router& router) {
  router.add({.method = "GET",
              .path = "/v1/models",
              .needs = Route::Needs::kModel,
              .thread = Route::Thread::kLoop,
              .handler = [&server](const ExchangePtr& exchange, const Caller&) {
                exchange->reply(list_models(server.model()));
              }});
  router.add({.method = "GET",
              .path = "/v1/models/{id}",
              .needs = Route::Needs::kModel,
              .thread = Route::Thread::kLoop,
              .handler = [&server](const ExchangePtr& exchange, const Caller&) {
                constexpr std::string_view kPrefix = "/v1/models/";
                const std::string_view path = exchange->request().path;
                exchange->reply(show_model(server.model(), path.substr(kPrefix.size())));
              }});
}

// Known, and not there: a client should hear why, not that the path is wrong.
void add_unsupported(Server& server, Router& router) {
  router.add({.method = "POST",
              .path = "/v1/embeddings",
              .thread = Route::Thread::kLoop,
              .handler = [&server](const ExchangePtr& exchange, const Caller&) {
                const ApiError error =
                    bad_value("", "embeddings are not supported; this server generates text",
                              "unsupported_parameter");
                if (server.parts().count_error) server.parts().count_error(error);
                exchange->reply(error_reply(*exchange, error));
              }});
}

}  // namespace

void add_model_routes(Server& server, Router& router) {
  add_chat(server, router);
  add_messages(server, router);
  add_responses(server, router);
  add_texts(server, router);
  add_models(server, router);
  add_unsupported(server, router);
}

}  // namespace fathom::serve
