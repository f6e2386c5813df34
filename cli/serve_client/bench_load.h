// bench serve, in builds that speak HTTP.
#pragma once

#include "cli/bench/bench_serve.h"

namespace fathom::cli {

/// As bench_serve.
Result<int> run_bench_load(const BenchServeFlags& flags, const GlobalFlags& globals);

}  // namespace fathom::cli
