// bench model --device cuda.
#pragma once

#include "cli/bench/bench_model_report.h"

namespace fathom::cli {

/// Of each batch: rates of prefill and of greedy decode, how far a decode step is from reading its
/// bytes once, and its ops beside their floors. Memory rates are measured in the same run. After an
/// error the report holds what was measured before.
Status bench_model_on_gpu(const BenchModelFlags& flags,
                          const Machine& machine,
                          const OpenedModel& opened,
                          ModelReport& report);

}  // namespace fathom::cli
