#include "fathom/serve/load/datasets.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "fathom/base/rng.h"
#include "fathom/base/str_cat.h"

namespace fathom::serve {
namespace {

constexpr int64_t kMostRequests = 10'000'000;
constexpr int64_t kMostTokens = int64_t{1} << 30;

Result<std::vector<FileRequest>> read_lines(
    std::string_view text,
    std::string_view what,
    const std::function<Result<FileRequest>(const Json&)>& read_one) {
  std::vector<FileRequest> out;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = str_cat(what, ": line ", number);
    Result<Json> json = parse_json(line, {.max_bytes = int64_t{64} << 20}, place);
    if (!json.ok()) return std::move(json).status();
    if (!json->is_object()) {
      return corrupt(str_cat(place, " is ", json->kind_name(), ", expected an object"));
    }
    Result<FileRequest> request = read_one(*json);
    if (!request.ok()) return std::move(request).status().add_context(place);
    out.push_back(std::move(request).value());
    if (static_cast<int64_t>(out.size()) > kMostRequests) break;
  }
  if (out.empty()) return corrupt(str_cat(what, " has no request"));
  return out;
}

// An integer of a member, absent without it.
Result<std::optional<int64_t>> read_length(const Json& json, std::string_view name) {
  const Json* found = json.find(name);
  if (found == nullptr || found->is_null()) return std::optional<int64_t>{};
  if (!found->is_int() || found->as_int() < 1 || found->as_int() > kMostTokens) {
    return corrupt(
        str_cat(name, " is ", found->kind_name(), ", expected an integer from 1 to ", kMostTokens));
  }
  return std::optional<int64_t>(found->as_int());
}

Result<FileRequest> read_prompt_line(const Json& json) {
  FileRequest request;
  for (const std::string_view name : {"output_len", "max_tokens", "output_tokens"}) {
    FATHOM_ASSIGN(const auto length, read_length(json, name));
    if (length && request.output_len == 0) request.output_len = *length;
  }
  if (const Json* messages = json.find("messages"); messages != nullptr) {
    if (!messages->is_array() || messages->items().empty()) {
      return corrupt("messages is no list of messages");
    }
    request.messages = messages->items();
    if (const Json* tools = json.find("tools"); tools != nullptr) request.tools = *tools;
    return request;
  }
  const Json* prompt = json.find("prompt");
  if (prompt == nullptr) return corrupt("has neither prompt nor messages");
  if (prompt->is_string()) {
    request.text = prompt->as_string();
    if (request.text.empty()) return corrupt("prompt is empty");
    return request;
  }
  if (!prompt->is_array() || prompt->items().empty()) {
    return corrupt(str_cat("prompt is ", prompt->kind_name(), ", expected text or ids"));
  }
  for (const Json& id : prompt->items()) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > INT32_MAX) {
      return corrupt("prompt holds what is no id of a token");
    }
    request.ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  return request;
}

Result<FileRequest> read_trace_line(const Json& json) {
  FileRequest request;
  const Json* timestamp = json.find("timestamp");
  if (timestamp == nullptr || !timestamp->is_number() || !(timestamp->as_double() >= 0) ||
      timestamp->as_double() > 1e12) {
    return corrupt("timestamp is no number of milliseconds");
  }
  request.at_ns = std::llround(timestamp->as_double() * 1e6);
  FATHOM_ASSIGN(const auto input, read_length(json, "input_length"));
  FATHOM_ASSIGN(const auto output, read_length(json, "output_length"));
  if (!input || !output) return corrupt("needs input_length and output_length");
  request.input_len = *input;
  request.output_len = *output;
  const Json* names = json.find("hash_ids");
  if (names == nullptr || !names->is_array()) return request;
  for (const Json& name : names->items()) {
    if (!name.is_int()) return corrupt("hash_ids holds what is no integer");
    request.blocks.push_back(static_cast<uint64_t>(name.as_int()));
  }
  return request;
}

}  // namespace

Result<std::vector<FileRequest>> read_jsonl_requests(std::string_view text, std::string_view what) {
  return read_lines(text, what, read_prompt_line);
}

Result<std::vector<FileRequest>> read_sharegpt_requests(std::string_view text,
                                                        std::string_view what) {
  JsonLimits limits;
  limits.max_bytes = int64_t{2} << 30;
  FATHOM_ASSIGN(const Json json, parse_json(text, limits, what));
  if (!json.is_array()) {
    return corrupt(str_cat(what, " is ", json.kind_name(), ", expected a list of conversations"));
  }
  std::vector<FileRequest> out;
  for (const Json& entry : json.items()) {
    const Json* turns = entry.find("conversations");
    if (turns == nullptr || !turns->is_array() || turns->items().size() < 2) continue;
    const Json* prompt = turns->items()[0].find("value");
    const Json* answer = turns->items()[1].find("value");
    const bool texts =
        prompt != nullptr && answer != nullptr && prompt->is_string() && answer->is_string();
    if (!texts || prompt->as_string().empty()) continue;
    FileRequest request;
    request.text = prompt->as_string();
    request.expected = answer->as_string();
    out.push_back(std::move(request));
  }
  if (out.empty()) return corrupt(str_cat(what, " has no conversation of two turns"));
  return out;
}

Result<std::vector<FileRequest>> read_trace_requests(std::string_view text, std::string_view what) {
  FATHOM_ASSIGN(std::vector<FileRequest> out, read_lines(text, what, read_trace_line));
  std::stable_sort(out.begin(), out.end(),
                   [](const FileRequest& a, const FileRequest& b) { return *a.at_ns < *b.at_ns; });
  const int64_t first = *out.front().at_ns;
  for (FileRequest& request : out)
    request.at_ns = *request.at_ns - first;
  return out;
}

std::vector<TraceBlock> trace_blocks(const FileRequest& request, uint64_t own_stream) {
  // Streams of named blocks and of requests without names must not meet.
  constexpr uint64_t kOwn = uint64_t{1} << 63;
  std::vector<TraceBlock> blocks;
  int64_t left = request.input_len;
  for (const uint64_t name : request.blocks) {
    if (left <= 0) break;
    blocks.push_back({.stream = name & ~kOwn, .tokens = std::min(left, kTraceBlockTokens)});
    left -= blocks.back().tokens;
  }
  if (left > 0) blocks.push_back({.stream = own_stream | kOwn, .tokens = left});
  return blocks;
}

std::vector<FileRequest> choose_requests(std::vector<FileRequest> all,
                                         int64_t count,
                                         uint64_t seed) {
  constexpr uint64_t kStream = 2;
  Rng rng(seed, kStream);
  for (size_t i = all.size(); i > 1; --i)
    std::swap(all[i - 1], all[rng.next_below(static_cast<uint32_t>(i))]);
  std::vector<FileRequest> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(all[static_cast<size_t>(i) % all.size()]);
  return out;
}

}  // namespace fathom::serve
