// From a configuration, a directory or a preset to a model that can run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "fathom/models/model.h"
#include "fathom/models/presets.h"

namespace fathom {

class Checkpoint;

/// A model without weights. Errors: Unsupported for an architecture that is not in the list;
/// those of validate_config and validate_options.
Result<std::unique_ptr<Model>> create_model(const ModelConfig& config, const ModelOptions& options);

/// Where weights come from.
enum class WeightOrigin : uint8_t {
  kCheckpoint,
  kRandom,  ///< `--dummy-weights`: right shapes and formats, random numbers
  kNone,    ///< dry: for plans and traces
};

struct OpenOptions {
  ModelOptions model;
  WeightOrigin weights = WeightOrigin::kCheckpoint;
  ThreadPool* pool = nullptr;  ///< reads and packs; may be null for kNone
  uint64_t seed = 0;           ///< of random weights
  std::function<void(int64_t done, int64_t total)> progress;
  bool report_surplus = true;  ///< log the tensors that nobody reads
};

/// Opens a checkpoint directory: config.json, formats of its tensors, weights. A draft layer is
/// used if the options allow it and its tensors are there. Surplus tensors are logged. Errors:
/// those of parse_config, Checkpoint, verify_tensors and load_weights.
Result<std::unique_ptr<Model>> open_model(const std::string& directory, const OpenOptions& options);

/// As open_model, of a checkpoint that is open and its config.json.
Result<std::unique_ptr<Model>> open_model(const Checkpoint& checkpoint,
                                          const ModelConfig& config,
                                          const OpenOptions& options);

/// A preset with random weights or none.
Result<std::unique_ptr<Model>> open_preset(const Preset& preset, const OpenOptions& options);

}  // namespace fathom
