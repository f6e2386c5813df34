// Fields that chat completions and completions read alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fathom/serve/fields.h"
#include "fathom/serve/openai/reply_parts.h"
#include "fathom/serve/prompt/chat_prompt.h"
#include "fathom/serve/served_model.h"

namespace fathom::serve {

/// What was read, or why not.
template <typename T>
using Parsed = std::variant<T, ApiError>;

/// Reads `model` and checks it. The name that replies carry.
std::string read_model_name(Fields& fields, const ServedModel& model);

/// Reads `stream`, `stream_options` and `timings`, and fills in what the model says. `prefix` is of
/// the id.
ReplyStyle read_reply_style(Fields& fields, const ServedModel& model, std::string_view prefix);

/// Reads `n` and `best_of`, which must equal it.
int read_num_choices(Fields& fields);

/// Reads `prompt_logprobs`: -1 if absent.
int read_prompt_logprobs(Fields& fields);

/// Reads `cache_salt` and `prompt_cache_key`.
CacheScope read_cache_scope(Fields& fields, std::string_view key_digest);

/// The token ids of an array that stands at `where`; the first that is none fails, by its index.
std::vector<int32_t> read_token_ids(Fields& fields,
                                    const Json& array,
                                    const std::string& where,
                                    int64_t vocab_size);

/// Reads what is accepted and does nothing (`user`, `metadata`, ...) within its limits, and refuses
/// what is known and not supported, by name.
void read_idle_fields(Fields& fields);

}  // namespace fathom::serve
