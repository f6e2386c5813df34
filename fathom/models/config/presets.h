// Built-in configurations and tensor formats: `--as NAME` in place of a model, for plans and dry
// runs of models that are not here.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fathom/models/config/config.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

/// The formats a checkpoint family stores its linear weights in. Embedding, head, norms, router and
/// compressors are bf16 in all of them; router biases, streams and sinks f32, hash tables i64.
struct PresetFormats {
  Format attention = Format::kBf16;
  Format output = Format::kBf16;  ///< o_proj
  Format mlp = Format::kBf16;     ///< dense and shared experts
  Format experts = Format::kBf16;
  bool draft = false;                    ///< true: the draft layer has the same, else it is bf16
  Format draft_experts = Format::kNone;  ///< kNone: the draft layer's are stored like the others
  Format draft_input = Format::kBf16;    ///< eh_proj; V4: e_proj and h_proj
  Format compressors = Format::kBf16;    ///< V4's wkv and wgate
};

struct Preset {
  std::string_view name;
  ModelConfig config;
  PresetFormats formats;
};

/// "deepseek-r1-nvfp4", "deepseek-v3", ...
std::vector<std::string_view> preset_names();

/// Errors: NotFound listing the names.
Result<Preset> find_preset(std::string_view name);

/// `--format NAME`: the formats of all weights, as checkpoints are published or exported. What
/// fp8_block, nvfp4 and mxfp4 are depends on the family.
enum class PresetFormatName : uint8_t {
  kBf16,      ///< everything
  kFp8Block,  ///< every linear layer, as DeepSeek publishes V3; V4: as its -Base, UE8M0 scales
  kNvfp4,  ///< MLPs, experts and o_proj of the main layers, as NVIDIA publishes R1; V4: experts of
           ///< the main layers, the rest as in mxfp4, as NVIDIA publishes it
  kMxfp4,  ///< experts, every other linear layer fp8_block: as DeepSeek publishes V4
  kFp8,    ///< every linear layer, a scale per output channel
  kInt8,   ///< the same
  kW4a8,   ///< every linear layer in QServe's format, a scale per output channel; experts w4_fp8
  kW4a8Group,  ///< the same with a scale per group of 128
  kNvfp4All,   ///< every linear layer in NVFP4, V4's compressors too (not wo_a, which stays bf16)
};

/// "bf16", "fp8_block", ...
std::string_view preset_format_name(PresetFormatName name);

PresetFormats preset_formats(PresetFormatName name, const ModelConfig& config);

/// By its name. Errors: InvalidArgument with the names.
Result<PresetFormats> preset_formats(std::string_view name, const ModelConfig& config);

/// Those names.
std::vector<std::string_view> preset_format_names();

/// For WeightPlan.
FormatSource formats_of(const PresetFormats& formats);

}  // namespace fathom
