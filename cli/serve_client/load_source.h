// The plan of a load run: from flags, files and what the server says of its tokens.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/bench_serve.h"
#include "cli/serve_client/load_run.h"
#include "cli/serve_client/server_facts.h"

namespace fathom::cli {

/// A plan and what must be said of it.
struct LoadSource {
  LoadPlan plan;
  double request_rate = 0;         ///< infinity: all at once, or at the times of a trace
  serve::TextRequest warmup;       ///< a small request of the plan's kind
  std::vector<std::string> notes;  ///< where lengths are estimates
};

/// What is wrong with the flags before a server is asked. Errors: InvalidArgument for flags that do
/// not fit each other; NotFound without the file that they name.
Status check_load_source(const BenchServeFlags& flags);

/// Asks the server for tokens where text must have a length. Errors: InvalidArgument for flags
/// that do not fit each other; those of files.
Result<LoadSource> make_load_source(const BenchServeFlags& flags,
                                    const ModelFacts& model,
                                    serve::HttpClient& client);

}  // namespace fathom::cli
