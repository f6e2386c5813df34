// Small forms that the writers of all protocols share: ids, the head of a stream, its events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/exchange.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {

/// `prefix` and 24 hex digits that nobody can guess: "chatcmpl-5f0c...".
std::string unguessable_id(std::string_view prefix);

/// 200, text/event-stream, not to be cached or buffered by proxies.
HttpReply event_stream_head();

/// "data: JSON\n\n". JSON holds no line ends.
std::string data_event(std::string_view json);

/// "event: NAME\ndata: JSON\n\n".
std::string named_event(std::string_view name, std::string_view json);

/// [1,2,3]: token ids.
void write_ids(JsonWriter& w, const std::vector<int32_t>& ids);

/// The last event of OpenAI's streams.
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

}  // namespace fathom::serve
