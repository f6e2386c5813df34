// Routes that ask the model: bodies are read on workers, answers run, writers write.
#include <memory>
#include <variant>
#include <vector>

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

// Tenants share prefixes only where the operator says so.
std::string scope_of(const Server& server, const Caller& caller) {
  return server.settings().shared_prefix_cache ? std::string() : caller.key;
}

// A route whose body `read` makes a request of, whose answer `Writer` writes.
template <class Writer, class Read>
void add_answer(Server& server, Router& router, std::string_view path, Read read) {
  router.add({.method = "POST",
              .path = path,
              .handler = [&server, read](const ExchangePtr& exchange, const Caller& caller) {
                auto asked = read(exchange->request(), server.model(), scope_of(server, caller));
                if (const auto* error = std::get_if<ApiError>(&asked)) {
                  server.fail(exchange, *error);
                  return;
                }
                exchange->release_body();
                auto& request = std::get<0>(asked);
                std::vector<AnswerSpec> specs;
                if constexpr (requires { request.answers; }) {
                  specs = std::move(request.answers);
                } else {
                  specs.push_back(std::move(request.answer));
                }
                for (AnswerSpec& spec : specs)
                  spec.client = caller.key;
                run_answer(server.answer_host(), exchange, std::move(specs),
                           std::make_unique<Writer>(exchange, std::move(request.style)));
              }});
}

void add_answers(Server& server, Router& router) {
  add_answer<ChatWriter>(server, router, "/v1/chat/completions", parse_chat_request);
  add_answer<CompletionWriter>(server, router, "/v1/completions", parse_completion_request);
  add_answer<ResponsesWriter>(server, router, "/v1/responses", parse_responses_request);
  add_answer<MessagesWriter>(
      server, router, "/v1/messages",
      [&server](const HttpRequest& request, const ServedModel& model, std::string_view scope) {
        return parse_messages_request(request, model, scope, server.signer());
      });
  router.add({.method = "POST",
              .path = "/v1/messages/count_tokens",
              .handler = [&server](const ExchangePtr& exchange, const Caller&) {
                exchange->reply(count_message_tokens(exchange->request(), server.model(),
                                                     server.signer(), exchange->id()));
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
  static constexpr std::string_view kOneModel = "/v1/models/{id}";
  router.add({.method = "GET",
              .path = "/v1/models",
              .needs = Route::Needs::kModel,
              .thread = Route::Thread::kLoop,
              .handler = [&server](const ExchangePtr& exchange, const Caller&) {
                exchange->reply(list_models(server.model()));
              }});
  router.add({.method = "GET",
              .path = kOneModel,
              .needs = Route::Needs::kModel,
              .thread = Route::Thread::kLoop,
              .handler = [&server](const ExchangePtr& exchange, const Caller&) {
                const std::string_view id = path_parameter(kOneModel, exchange->request().path);
                exchange->reply(show_model(server.model(), id));
              }});
}

// Known, and not there: a client should hear why, not that the path is wrong.
void add_unsupported(Server& server, Router& router) {
  router.add({.method = "POST",
              .path = "/v1/embeddings",
              .thread = Route::Thread::kLoop,
              .handler = [&server](const ExchangePtr& exchange, const Caller&) {
                server.fail(
                    exchange,
                    bad_value("", "embeddings are not supported; this server generates text",
                              "unsupported_parameter"));
              }});
}

}  // namespace

void add_model_routes(Server& server, Router& router) {
  add_answers(server, router);
  add_texts(server, router);
  add_models(server, router);
  add_unsupported(server, router);
}

}  // namespace fathom::serve
