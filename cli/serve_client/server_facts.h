// What a load run and a chat ask of a server before they begin.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/server_flags.h"
#include "fathom/serve/client/answer_reader.h"
#include "fathom/serve/http/client/http_client.h"
#include "fathom/serve/load/server_counters.h"

namespace fathom::cli {

/// A client with the key and limits of the flags. Errors: those of HttpClient::create and of the
/// key.
Result<std::unique_ptr<serve::HttpClient>> connect_client(const std::string& base_url,
                                                          const ServerFlags& flags);

/// One model of a server.
struct ModelFacts {
  std::string id;
  std::string root;        ///< where it was loaded from; the id where the server does not say
  int64_t vocab_size = 0;  ///< 0: unknown
};

/// The model of that name in /v1/models, with an empty name the first. A name that the list does
/// not have is taken as it is: servers may know more. Errors: those of the connection; Unavailable
/// for a reply other than 200, InvalidArgument for a server without models.
Result<ModelFacts> find_model(serve::HttpClient& client, const std::string& name);

/// The tokens of a text, or the text of tokens; nothing where the server has no such route.
std::optional<std::vector<int32_t>> tokenize_there(serve::HttpClient& client,
                                                   const std::string& model,
                                                   const std::string& text);
std::optional<std::string> detokenize_there(serve::HttpClient& client,
                                            const std::string& model,
                                            const std::vector<int32_t>& ids);

/// The tokens of a conversation in the shape of chat completions.
struct CountedConversation {
  int64_t tokens = 0;
  std::optional<int64_t> max_model_len{};  ///< where the server says it
};

/// Nothing where the server has no such route.
std::optional<CountedConversation> count_there(serve::HttpClient& client,
                                               const std::string& model,
                                               std::vector<Json> messages);

/// Counters of speculation, where the server has them.
std::optional<serve::DraftCounters> draft_counters_there(serve::HttpClient& client);

/// Whether /server_info says that drafts are accepted by a rule and not by the model.
bool simulates_acceptance(serve::HttpClient& client);

/// "429 queue_full": of a reply other than 200.
std::string error_code_of(int status, const serve::SentError& sent);

}  // namespace fathom::cli
