// Two recordings side by side: the first op that differs, and the ops that became slower.
#pragma once

#include <string>
#include <vector>

#include "fathom/report/files/ops_csv.h"

namespace fathom {

struct DiffOptions {
  /// How far statistics may lie apart, as a share of the size of the numbers. Rounding differs
  /// between instruction sets; the same machine and build give the same bits.
  double tolerance = 0.02;
  double fail_slower = 0.10;  ///< of the median time of an op
  double min_share = 0.001;   ///< ops below this share of a phase's time are not judged by time
};

/// One difference between rows at the same place.
struct OpDifference {
  std::string phase;
  int64_t step = 0;
  int64_t index = 0;
  std::string scope;
  std::string op;
  std::string what;  ///< "kernel: nvfp4_gemm in A, bf16_gemm in B"
};

struct SlowerOp {
  std::string phase;
  std::string op;
  std::string kernel;
  int64_t calls = 0;
  double us_a = 0;  ///< median of a call
  double us_b = 0;
  double share = 0;  ///< of the phase's time in A

  double ratio() const { return us_a > 0 ? us_b / us_a : 0; }
};

struct TraceDifference {
  std::vector<OpDifference> shape;   ///< ops, kernels, formats, sizes; the first of each phase
  std::vector<OpDifference> values;  ///< statistics beyond the tolerance, in order
  std::vector<SlowerOp> times;       ///< every op that both timed, slowest change first
  int64_t rows_a = 0;
  int64_t rows_b = 0;
  int64_t variants = 0;  ///< ops with the same kernel in another variant: told, no failure
  int64_t compared_values = 0;

  /// True if shapes, values or times differ beyond what the options allow.
  bool failed(const DiffOptions& options) const;
};

TraceDifference diff_traces(const std::vector<OpRow>& a,
                            const std::vector<OpRow>& b,
                            const DiffOptions& options);

/// Markdown: counts, the first diverging op of each kind, ops by how their time changed.
std::string write_trace_diff(const TraceDifference& difference,
                             const DiffOptions& options,
                             std::string_view name_a,
                             std::string_view name_b);

}  // namespace fathom
