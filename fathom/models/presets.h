// Built-in configurations and tensor formats: `--as NAME` in place of a model, for plans and dry
// runs of models that are not here.
#pragma once

#include <string_view>
#include <vector>

#include "fathom/models/config.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

/// The formats a checkpoint family stores its linear weights in. Embedding, head, norms, router and
/// eh_proj are bf16 in all of them, router biases f32.
struct PresetFormats {
  Format attention = Format::kBf16;
  Format output = Format::kBf16;  ///< o_proj
  Format mlp = Format::kBf16;     ///< dense, routed and shared experts
  bool draft = false;             ///< true: the draft layer has the same, else it is bf16
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

/// The formats of `--format`: bf16 (all), fp8_block (every linear, as DeepSeek publishes V3), nvfp4
/// (MLPs, experts and o_proj of the main layers, as NVIDIA publishes R1). Errors: InvalidArgument.
Result<PresetFormats> preset_formats(Format format);

/// For WeightPlan.
FormatSource formats_of(const PresetFormats& formats);

}  // namespace fathom
