// The metrics of the server as a list: what /metrics may hold, in the order in which it is written.
// The names stand behind the prefix ("fathom:"). Meanings and names that vLLM has too are vLLM's,
// so that its dashboards and routers read ours with --metrics-prefix vllm.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace fathom::serve {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };

/// One family. Besides these labels every series has `model_name` and `engine`.
struct MetricInfo {
  std::string_view name;  ///< "kv_cache_usage_perc"
  MetricKind kind;
  std::string_view labels;  ///< with commas: "device,kind"; empty: none
  std::string_view help;
};

std::span<const MetricInfo> metric_catalogue();

/// The entry of a name, or null.
const MetricInfo* find_metric(std::string_view name);

/// "counter", "gauge", "histogram".
std::string_view metric_kind_name(MetricKind kind);

/// Values of the label `code` of request_errors_total; any other code counts as the last, "other".
std::span<const std::string_view> error_codes();

}  // namespace fathom::serve
