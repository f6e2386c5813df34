// What an output says about its quantisation, in config.json and in ModelOpt's file beside it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"

namespace fathom {

/// What config.json and hf_quant_config.json are to say of an output.
struct QuantDeclaration {
  std::string quantization_config;  ///< JSON text, empty for dense formats
  std::string sidecar;              ///< empty for formats that have none
};

/// A matrix of an output: "model.layers.0.mlp.up_proj" and how it is stored.
struct ModuleFormat {
  std::string module;
  Format format = Format::kNone;
};

/// Declares the one quantised format of an output as its publishers do, and lists the modules
/// without it. NVFP4 beside FP8 blocks is declared as in NVIDIA's checkpoints of V4 (quant_method
/// fp8, moe_quant_algo NVFP4), MXFP4 beside FP8 blocks with powers of two as in DeepSeek's, any
/// other mixture as MIXED_PRECISION.
QuantDeclaration declare_quantization(const std::vector<ModuleFormat>& modules,
                                      std::string_view tool_version);

/// config.json with its quantization_config replaced (or removed, if empty), expert_dtype replaced
/// (V4; empty leaves it) and, without draft layers, num_nextn_predict_layers set to 0 and
/// compress_ratios cut to the layers of the main model. Other keys keep their order.
Result<std::string> rewrite_config(std::string_view config_text,
                                   std::string_view quantization_config,
                                   bool keep_draft,
                                   std::string_view expert_dtype = {});

}  // namespace fathom
