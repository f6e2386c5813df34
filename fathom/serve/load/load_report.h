// What a load run prints and writes: JSON with the keys of `vllm bench serve`, Markdown for people,
// a CSV line a request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fathom/serve/load/load_metrics.h"
#include "fathom/serve/load/server_counters.h"
#include "fathom/text/json.h"

namespace fathom::serve {

/// A run, with what the command asked for.
struct LoadReport {
  std::string date;     ///< "20260131-120000"
  std::string backend;  ///< as vllm calls the route: "openai", "openai-chat"; "anthropic"
  std::string model_id;
  std::string tokenizer_id;
  int64_t num_prompts = 0;
  double request_rate = 0;  ///< infinity: all at once
  double burstiness = 1;
  std::optional<int64_t> max_concurrency{};
  bool has_goodput = false;
  LoadMetrics metrics{};
  std::vector<LoadRecord> records{};
  std::optional<DraftCounters> drafts{};  ///< of the run, from /metrics
  std::vector<JsonMember> own{};          ///< members of the key "fathom"
  std::vector<std::string> notes{};       ///< for people, and in "fathom"
  std::string dataset;
};

/// Whether arrays with a value a request are written.
enum class LoadDetail : uint8_t { kSums, kRequests };

std::string load_report_json(const LoadReport& report, LoadDetail detail);
std::string load_report_markdown(const LoadReport& report);

/// A header and a line a request.
std::string load_report_csv(const LoadReport& report);

}  // namespace fathom::serve
