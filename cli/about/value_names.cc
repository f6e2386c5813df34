#include "cli/about/value_names.h"

namespace fathom::cli {
namespace {

struct Row {
  std::string_view flags;  // separated by blanks
  ValueType type;
  std::string_view name;
};

constexpr Row kRows[] = {
    {"file ids-out config chat ppl calibrate vectors ids logits-out out-file png dataset-path "
     "api-key-file ssl-keyfile ssl-certfile trace-requests prompts out",
     ValueType::kText, "FILE"},
    {"out-dir profile-dir prefix", ValueType::kText, "DIR"},
    {"uds source-links", ValueType::kText, "PATH"},
    {"extra-body chat-template-kwargs", ValueType::kText, "JSON"},
    {"url base-url", ValueType::kText, "URL"},
    {"kv-events kv-events-replay", ValueType::kText, "ENDPOINT"},
    {"model served-model-name allowed-host metrics-prefix pod-id tool-call-parser "
     "reasoning-parser chat-format suite",
     ValueType::kText, "NAME"},
    {"compare", ValueType::kText, "MODEL"},
    {"compare-options", ValueType::kText, "OPTION=VALUE"},
    {"logit-bias", ValueType::kText, "ID=BIAS"},
    {"decode", ValueType::kText, "IDS"},
    {"explain", ValueType::kText, "OP"},
    {"device backend", ValueType::kText, "DEVICE"},
    {"peaks", ValueType::kText, "measured|nominal|FILE"},
    {"layers", ValueType::kText, "A-B"},
    {"as", ValueType::kText, "PRESET"},
    {"format", ValueType::kText, "FORMAT"},
    {"version", ValueType::kText, "VERSION"},
    {"scope", ValueType::kText, "experts|mlp-o|all-linear|compressors"},
    {"phase", ValueType::kText, "PHASE"},
    {"kernels", ValueType::kText, "NAMES"},
    {"filter ignore", ValueType::kText, "PATTERN"},
    {"output", ValueType::kText, "FORM"},
    {"fail-slower", ValueType::kText, "PERCENT%"},
    {"goodput", ValueType::kText, "NAME:MS"},
    {"request-rate", ValueType::kText, "RATE"},
    {"endpoint", ValueType::kText, "ROUTE"},
    {"host", ValueType::kText, "ADDRESS"},
    {"root-path", ValueType::kText, "PREFIX"},
    {"cors-origin", ValueType::kText, "ORIGIN"},
    {"api-key", ValueType::kText, "KEY"},
    {"timeout idle-timeout sse-ping-interval drain-timeout stall-timeout duration think-time "
     "min-time budget",
     ValueType::kNumber, "SECONDS"},
    {"max-tokens prompt depth input-len output-len shared-prefix-len task-len tool-result-len "
     "tool-result-max prompt-tokens chunk calibrate-tokens",
     ValueType::kNumber, "TOKENS"},
    {"seq kv-len", ValueType::kNumber, "TOKENS"},
    {"max-body-mb", ValueType::kNumber, "MIB"},
    {"shard-gb", ValueType::kNumber, "GB"},
    {"tolerance fail-slower", ValueType::kNumber, "PERCENT"},
    {"max-kl", ValueType::kNumber, "NATS"},
};

bool lists(std::string_view flags, std::string_view flag) {
  for (size_t at = 0; at < flags.size();) {
    const size_t end = flags.find(' ', at);
    if (flags.substr(at, end - at) == flag) return true;
    if (end == flags.npos) break;
    at = end + 1;
  }
  return false;
}

}  // namespace

std::string_view listed_value_name(std::string_view flag, ValueType type) {
  for (const Row& row : kRows)
    if (row.type == type && lists(row.flags, flag)) return row.name;
  return {};
}

}  // namespace fathom::cli
