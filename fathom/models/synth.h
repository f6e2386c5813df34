// Small checkpoints with random weights: the real structure of a family, any format, seconds to
// make.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/formats/format_choice.h"

namespace fathom {

struct SynthOptions {
  std::string version = "v3";  ///< one of synth_versions()
  int64_t layers = 4;          ///< of v4 at least 3, one of each kind of attention
  int64_t hidden = 256;
  int64_t experts = 8;
  int64_t kv_heads = 4;           ///< of v1, which has 4 heads of queries: 1, 2 or 4
  Format format = Format::kBf16;  ///< one of synth_formats(), as checkpoints of the version have it
  uint64_t seed = 1;
  std::function<void(int64_t done, int64_t total)> progress{};  ///< tensors
};

struct SynthReport {
  int64_t parameters = 0;
  int64_t bytes = 0;
};

/// v1, v2-lite, v2, v3, r1, v3.2, v4.
std::span<const std::string_view> synth_versions();

/// bf16, fp8_block, nvfp4, mxfp4: formats of the linear layers, as PresetFormatName says. mxfp4 is
/// of v4 alone.
std::span<const FormatChoice> synth_formats();

/// Writes a checkpoint directory: config.json, generation_config.json, tokenizer.json (256 bytes
/// and the control tokens), tokenizer_config.json and the weights, those of V4 under DeepSeek's own
/// names. The same options give the same
/// bytes. Errors: InvalidArgument for options out of range, naming option, value and range; Io.
Result<SynthReport> synthesize_checkpoint(const std::string& directory,
                                          const SynthOptions& options);

}  // namespace fathom
