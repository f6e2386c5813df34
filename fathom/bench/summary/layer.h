// One MoE layer of DeepSeek-R1 as the published benchmark runs it: which kernel runs each op, and
// which row of the suite reference23 times it. The sum of those rows is the time of the layer.
//
// The ops and their order are those of the model's code (layer_test.cc holds them to a dry run).
// Formats are those of the benchmark: the projections of attention in NVFP4 and the absorbed
// products in FP8, where the preset deepseek-r1-nvfp4 keeps bf16.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/bench/row.h"
#include "fathom/kernels/conformance/reference_shapes.h"

namespace fathom {

struct LayerOp {
  std::string_view op;        ///< of the rows
  std::string_view kernel;    ///< by our name
  std::string_view model_op;  ///< in the code of the model
};

/// In order of execution: decode in the absorbed form, prefill with keys and values expanded.
std::vector<LayerOp> layer_ops(const ReferencePoint& point);

/// The row that times `op` at `point`; null if there is none or it has no time.
const BenchRow* row_of(std::span<const BenchRow> rows,
                       const LayerOp& op,
                       const ReferencePoint& point);

struct LayerTime {
  double us = 0;
  std::vector<const BenchRow*> rows{};  ///< one an op, in order
};

/// Errors: NotFound naming every op without a time.
Result<LayerTime> layer_time(std::span<const BenchRow> rows, const ReferencePoint& point);

/// What a kernel is for, in the words of the published benchmark: "Norm", "GEMM", ...
std::string_view kernel_category(std::string_view kernel);

}  // namespace fathom
