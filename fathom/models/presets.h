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
  Format mlp = Format::kBf16;     ///< dense and shared experts
  Format experts = Format::kBf16;
  bool draft = false;  ///< true: the draft layer has the same, else it is bf16
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

/// The formats of `--format NAME`:
///
///   bf16                           everything
///   fp8_block                      every linear layer, as DeepSeek publishes V3
///   nvfp4                          MLPs, experts and o_proj of the main layers, as NVIDIA
///   publishes R1 fp8, int8                      every linear layer, a scale per output channel
///   (fp8_channel, ...) w4a8, w4a8_group               every linear layer in QServe's formats, per
///   output channel or per
///                                  group of 128; routed experts in w4_fp8
///
/// Errors: InvalidArgument with those names.
Result<PresetFormats> preset_formats(std::string_view name);

/// Those names.
std::vector<std::string_view> preset_format_names();

/// For WeightPlan.
FormatSource formats_of(const PresetFormats& formats);

}  // namespace fathom
