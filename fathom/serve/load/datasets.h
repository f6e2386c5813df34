// Requests from files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/text/json.h"

namespace fathom::serve {

/// One request of a file. One of ids, text, messages and blocks is there.
struct FileRequest {
  std::vector<int32_t> ids{};
  std::string text{};
  std::vector<Json> messages{};
  Json tools{};
  int64_t output_len = 0;  ///< 0: not given
  std::string expected{};  ///< the answer in the file, whose length counts where output_len is 0

  // Of traces.
  std::optional<int64_t> at_ns{};
  int64_t input_len = 0;
  std::vector<uint64_t> blocks{};  ///< names of its blocks of 512 tokens; equal names, equal tokens
};

inline constexpr int64_t kTraceBlockTokens = 512;

/// A line a request: {"prompt": text or ids, "output_len": n} or {"messages": [...], "tools":
/// [...]}; "max_tokens" and "output_tokens" are output_len. `what` names the file in messages.
/// Errors: Corrupt, with the line.
Result<std::vector<FileRequest>> read_jsonl_requests(std::string_view text, std::string_view what);

/// [{"conversations": [{"from": .., "value": ..}, ...]}, ...]: the first turn is the prompt, the
/// second the expected answer. Conversations of fewer than two turns are left out. Errors: Corrupt.
Result<std::vector<FileRequest>> read_sharegpt_requests(std::string_view text,
                                                        std::string_view what);

/// A line a request, as in the traces of Mooncake: {"timestamp": ms, "input_length": n,
/// "output_length": n, "hash_ids": [..]}. Without hash_ids every request has tokens of its own.
/// Errors: Corrupt, with the line.
Result<std::vector<FileRequest>> read_trace_requests(std::string_view text, std::string_view what);

/// Seeded blocks of a trace's request, cut to its length. The i-th element says with which stream
/// of random numbers block i is made, and of how many tokens it is.
struct TraceBlock {
  uint64_t stream = 0;
  int64_t tokens = 0;
};

std::vector<TraceBlock> trace_blocks(const FileRequest& request, uint64_t own_stream);

/// A seeded choice of `count` requests in random order; all of them, again and again, where there
/// are fewer.
std::vector<FileRequest> choose_requests(std::vector<FileRequest> all,
                                         int64_t count,
                                         uint64_t seed);

}  // namespace fathom::serve
