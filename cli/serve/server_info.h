// What GET /server_info and GET /version say.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fathom/api/engine.h"
#include "fathom/serve/served_model.h"

namespace fathom::cli {

struct StartPhase {
  std::string name;  ///< "open", "load", "warm-up"
  double seconds = 0;
  int64_t bytes = 0;
};

/// Names and bytes of the regions of memory that the engine holds: weights, activations, KV cache.
std::vector<std::pair<std::string, int64_t>> memory_regions(const MemoryPlan& plan);

/// The formats and ways that are in effect: graphs or eager, types of numbers, attention, threads.
std::vector<std::pair<std::string, std::string>> effective_mode(const Engine& engine);

/// What a token costs, from the sizes of the weights: routed experts by the share that a token
/// takes, the embedding not at all. Attention itself, which grows with the context, is left out.
struct TokenCost {
  double flops = 0;            ///< two a parameter
  double bytes_per_step = 0;   ///< of weights that every step reads
  double bytes_per_token = 0;  ///< of experts that a token adds while experts are not shared
};

TokenCost token_cost(const Model& model);

/// {"version","commit","build","cuda","archs"}
std::string version_json();

/// What the page reads (its head lists the fields), the phases of the start, and the configuration,
/// which is JSON as --print-config has it.
std::string server_info_json(const Engine& engine,
                             const serve::ServedModel& model,
                             const std::vector<StartPhase>& startup,
                             const std::string& config_json);

}  // namespace fathom::cli
