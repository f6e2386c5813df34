// Small checkpoints with random weights: the real structure of a family, any format, seconds to
// make.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"

namespace fathom {

struct SynthOptions {
  std::string version = "v3";  ///< v2-lite, v2, v3 or r1
  int64_t layers = 4;
  int64_t hidden = 256;
  int64_t experts = 8;
  Format format = Format::kBf16;  ///< bf16, fp8_block or nvfp4, applied as published checkpoints do
  uint64_t seed = 1;
};

struct SynthReport {
  int64_t parameters = 0;
  int64_t bytes = 0;
};

std::vector<std::string> synth_versions();

/// Writes a checkpoint directory: config.json, generation_config.json, tokenizer.json (256 bytes
/// and the control tokens), tokenizer_config.json and the weights. The same options give the same
/// bytes. Errors: InvalidArgument for options out of range, naming option, value and range; Io.
Result<SynthReport> synthesize_checkpoint(const std::string& directory,
                                          const SynthOptions& options);

}  // namespace fathom
