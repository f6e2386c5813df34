// Quantises a checkpoint: reads one in any format the loader knows, writes one in the Hugging Face
// layout with quantised linears, resumable and never half there (checkpoint_writer.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/export/quant_scope.h"
#include "fathom/weights/export/quantize_tensor.h"

namespace fathom {

struct QuantizeOptions {
  Format format = Format::kNvfp4;
  QuantScope scope = QuantScope::kMlpO;
  bool keep_draft = true;  ///< draft layers are copied as they are; false leaves them out
  /// Globs of tensors or modules that stay as they are; each matches a weight of the source.
  std::vector<std::string> ignore;
  int64_t max_shard_bytes = 5'000'000'000;
  /// The largest magnitude that products with a weight read (runtime/eval/input_ranges.h), by the
  /// weight's name. NVFP4 alone: its input_scale is that / (6 * 448). Weights without get none.
  std::map<std::string, float> input_amax;
  std::string tool_version;                                   ///< entered in hf_quant_config.json
  std::function<void(int64_t done, int64_t total)> progress;  ///< bytes of the output
};

/// One quantised weight in the report.
struct QuantizedWeight {
  std::string name;
  int64_t n = 0;
  int64_t k = 0;
  QuantError error;
};

struct QuantizeReport {
  std::vector<QuantizedWeight> weights;  ///< those quantised in this run, in file order
  QuantError total;                      ///< of those
  int64_t num_weights = 0;               ///< quantised ones of the output, reused shards included
  int64_t num_input_scales = 0;          ///< those of them with an input_scale
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;
  int64_t copied_tensors = 0;
  int64_t num_shards = 0;
  int64_t reused_shards = 0;  ///< of an earlier run with the same source and options
};

/// Quantises `source` into `target_directory`. config.json gets the quantization_config of the
/// format, and hf_quant_config.json beside it for NVFP4; tokenizer and generation config are
/// copied. An earlier write is resumed if the config, the places of the tensors, and sizes and
/// times of change of the source's files are what they were. gate_proj and up_proj share their
/// NVFP4 global scale, because engines fuse them. Errors: Corrupt for weights that are not finite,
/// Unsupported for formats or columns that do not fit and where no weight is left to quantise, Io
/// with nothing loadable left behind, InvalidArgument for a target that is the source or holds
/// another write, and for a pattern of `ignore` that matches no weight.
Result<QuantizeReport> quantize_checkpoint(const Checkpoint& source,
                                           const std::string& target_directory,
                                           const QuantizeOptions& options);

}  // namespace fathom
