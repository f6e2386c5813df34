// What the weights of a model read on a text: the ranges that quantised activations are given.
#pragma once

#include <map>
#include <string>

#include "cli/command.h"

namespace fathom::cli {

struct Calibration {
  std::map<std::string, float> input_amax;  ///< QuantizeOptions::input_amax
  int64_t tokens = 0;                       ///< that were run
};

/// Runs the model of a directory on the CPU over the first tokens of a text file, in blocks of 511
/// after the token of the beginning. Errors: those of open_model, which refuses what does not fit
/// the memory; Corrupt for an empty text and for a tokenizer without a token of the beginning;
/// Numerical for activations that are not finite.
Result<Calibration> calibrate(const std::string& directory,
                              const std::string& text_file,
                              int64_t max_tokens,
                              const GlobalFlags& globals);

}  // namespace fathom::cli
