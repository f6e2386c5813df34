// Quantises a checkpoint: reads one in any format the loader knows, writes one in the Hugging Face
// layout with quantised linears, resumable and never half there (checkpoint_writer.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/export/quantize_tensor.h"

namespace fathom {

/// Which linears are quantised. Embeddings, the head, norms and the router never are.
enum class QuantScope {
  kExperts,    ///< routed experts
  kMlpO,       ///< all MLPs, experts and o_proj, as in R1-NVFP4-v2
  kAllLinear,  ///< the projections of attention as well
};

Result<QuantScope> parse_quant_scope(std::string_view name);

struct QuantizeOptions {
  Format format = Format::kNvfp4;
  QuantScope scope = QuantScope::kMlpO;
  bool keep_draft = true;  ///< draft layers are copied as they are; false leaves them out
  /// Globs of tensors or modules that stay as they are; each matches a weight of the source.
  std::vector<std::string> ignore;
  int64_t max_shard_bytes = 5'000'000'000;
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
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;
  int64_t copied_tensors = 0;
  int64_t num_shards = 0;
  int64_t reused_shards = 0;  ///< of an earlier run with the same source and options
};

/// True if the scope takes this weight of a DeepSeek V2 or V3 checkpoint, by its name.
bool in_quant_scope(std::string_view weight_name, QuantScope scope);

/// The number of the decoder layer in "model.layers.12.mlp...", or -1.
int64_t layer_of(std::string_view tensor_name);

/// Quantises `source` into `target_directory`. config.json gets the quantization_config of the
/// format, and hf_quant_config.json beside it for NVFP4; tokenizer and generation config are
/// copied. An earlier write is resumed if the config, the places of the tensors, and sizes and
/// times of change of the source's files are what they were. gate_proj and up_proj share their
/// NVFP4 global scale, because engines fuse them. Activations are not calibrated: no input_scale is
/// written. Errors: Corrupt for weights that are not finite, Unsupported for formats or columns
/// that do not fit, Io with nothing loadable left behind, InvalidArgument for a target that is the
/// source or holds another write, and for a pattern of `ignore` that matches no weight.
Result<QuantizeReport> quantize_checkpoint(const Checkpoint& source,
                                           const std::string& target_directory,
                                           const QuantizeOptions& options);

/// The keys that `format` adds to config.json and the text of hf_quant_config.json (empty for
/// formats that have none). `excluded` lists modules that stay unquantised.
struct QuantDeclaration {
  std::string quantization_config;  ///< JSON text, empty for dense formats
  std::string sidecar;
};

QuantDeclaration declare_quantization(Format format,
                                      const std::vector<std::string>& excluded,
                                      std::string_view tool_version);

/// config.json with its quantization_config replaced (or removed, if empty) and, without draft
/// layers, num_nextn_predict_layers set to 0. Other keys keep their order.
Result<std::string> rewrite_config(std::string_view config_text,
                                   std::string_view quantization_config,
                                   bool keep_draft);

}  // namespace fathom
