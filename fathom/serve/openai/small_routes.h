// Routes that answer at once, from the request and what is known of the model.
#pragma once

#include <string_view>

#include "fathom/serve/exchange.h"
#include "fathom/serve/served_model.h"

namespace fathom::serve {

/// GET /v1/models: `data` for OpenAI's clients, `models` beside it.
HttpReply list_models(const ServedModel& model);

/// GET /v1/models/{id}: 404 model_not_found for another name.
HttpReply show_model(const ServedModel& model, std::string_view id);

// For a worker: they tokenise.

/// POST /tokenize: {prompt} or {messages, tools, ...} to {count, max_model_len, tokens}.
HttpReply tokenize(const HttpRequest& request, const ServedModel& model);

/// POST /detokenize: {tokens} to {prompt}.
HttpReply detokenize(const HttpRequest& request, const ServedModel& model);

/// POST /v1/completions/render: [{"token_ids":[...]}], one for each prompt.
HttpReply render_completion(const HttpRequest& request, const ServedModel& model);

/// POST /v1/chat/completions/render: {"token_ids":[...]}.
HttpReply render_chat(const HttpRequest& request, const ServedModel& model);

/// POST /v1/chat/completions/input_tokens: {"object":..., "input_tokens":N}.
HttpReply count_chat_tokens(const HttpRequest& request, const ServedModel& model);

}  // namespace fathom::serve
