// What `bench model` has measured, as a table for people or as records for programs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/bench_model.h"
#include "fathom/bench/files/report.h"
#include "fathom/bench/machine/peaks.h"
#include "fathom/bench/row.h"
#include "fathom/trace/record.h"

namespace fathom::cli {

inline constexpr std::string_view kModelBenchSchema = "fathom.bench.model/1";

/// Tokens a second of one test.
struct Rate {
  std::string test;         ///< "pp512", "tg128 x 8 @ d64", "engine tg128"
  std::string_view phase;   ///< "prefill", "decode", "engine decode"
  int64_t batch = 1;        ///< sequences
  int64_t tokens = 0;       ///< of each sequence in a run
  int64_t depth = 0;        ///< tokens of each before
  double tokens_per_s = 0;  ///< median
  double low = 0;
  double high = 0;
  double step_seconds = 0;  ///< median of one pass
};

/// All calls of one op by one variant in a pass.
struct OpTotal {
  int64_t calls = 0;
  double seconds = 0;
  Cost cost;
};

/// By "op (kernel, variant)".
using OpTotals = std::map<std::string, OpTotal>;

void add_call(OpTotals& totals, const OpRecord& record, double seconds);

Cost sum_of(const OpTotals& totals);

/// The ops of one pass.
struct PassOps {
  std::string_view phase;  ///< "prefill", "decode"
  int64_t batch = 1;
  OpTotals totals;
};

struct ModelReport {
  BenchConditions conditions;
  std::string model;
  std::string format;  ///< that was asked for; may be empty
  int64_t bytes = 0;   ///< of the weights
  int64_t parameters = 0;
  std::string backend;  ///< "CPU", or the name of the GPU
  std::string threads;  ///< as the table says it: "2", "-"
  int repetitions = 1;
  Peaks peaks;
  std::vector<Rate> rates;  ///< a block for each batch, one after the other
  std::vector<PassOps> ops;
  std::string text;  ///< what follows the table of rates, as Markdown
};

/// Everything but what is measured.
ModelReport start_model_report(const OpenedModel& opened,
                               const BenchModelFlags& flags,
                               BenchConditions conditions);

/// The `most` ops (0: all) that took longest, beside what the roof allows.
std::string ops_table(const std::string& title,
                      const OpTotals& totals,
                      const Peaks& peaks,
                      int most);

/// Markdown has the rates, then the text. CSV and JSON lines have a record a test; JSON has the
/// records, the ceilings and the ops of each pass.
std::string write_model_report(const ModelReport& report, BenchFormat format);

}  // namespace fathom::cli
