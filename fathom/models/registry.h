// From a configuration, a directory or a preset to a model that can run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fathom/models/config/presets.h"
#include "fathom/models/model.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/checkpoint/quant_config.h"
#include "fathom/weights/plan/placement.h"

namespace fathom {

/// A model without weights. Errors: Unsupported for an architecture that is not in the list;
/// those of validate_config and validate_options.
Result<std::unique_ptr<Model>> create_model(const ModelConfig& config, const ModelOptions& options);

/// What a model is made from: the files of a directory, or a description in place of them. Each
/// file is read once, here; whatever is known before weights are read is in it.
struct ModelSource {
  std::string title;  ///< the directory, or the name of the description
  ModelConfig config;
  PresetFormats formats;  ///< of a description

  // Of a directory.
  std::optional<Checkpoint> checkpoint;  ///< absent: a description
  std::string config_text;               ///< config.json
  QuantConfig declared;         ///< for the reader: the tensors decide how weights are loaded
  GenerationConfig generation;  ///< generation_config.json, which may be missing

  /// Opens a directory: index, headers of the shards, config.json, hf_quant_config.json and
  /// generation_config.json. Errors: those of Checkpoint::open, parse_config, read_quant_config and
  /// parse_generation_config.
  static Result<ModelSource> open(const std::string& directory);

  /// A description, whose weights are random or none.
  static ModelSource describe(const Preset& preset);

  /// The model of a directory in other formats: of its files, config.json alone is read. Errors:
  /// those of parse_config.
  static Result<ModelSource> describe(const std::string& directory, PresetFormatName formats);
};

/// Where weights come from.
enum class WeightOrigin : uint8_t {
  kCheckpoint,
  kRandom,  ///< `--dummy-weights`: right shapes and formats, random numbers
  kNone,    ///< dry: for plans and traces
};

struct OpenOptions {
  ModelOptions model;
  WeightOrigin weights = WeightOrigin::kCheckpoint;
  ThreadPool* pool = nullptr;       ///< reads and packs; may be null for kNone
  const DeviceInfo* gpu = nullptr;  ///< of a placement on a GPU; may be null for kNone
  uint64_t seed = 0;                ///< of random weights
  std::function<void(int64_t done, int64_t total)> progress = {};
  /// Asked with the model on shapes alone, before anything is read; an error of it is returned.
  std::function<Status(const Model& dry)> admit = {};
  /// Told what lies where, once the weights are read.
  std::function<void(const WeightPlan& plan)> loaded = {};
};

/// Opens a model. A draft layer is used if the options allow it and its tensors are there. Tensors
/// that nobody reads are logged. Before weights are read, the model must have kernels for every op
/// on its GPU, pass `admit`, and fit the memory that is free there. Errors: those of create_model,
/// verify_tensors, load_weights and `admit`; InvalidArgument for weights of a description that are
/// neither random nor none; OutOfMemory with both numbers.
Result<std::unique_ptr<Model>> open_model(const ModelSource& source,
                                          const Placement& placement,
                                          const OpenOptions& options);

}  // namespace fathom
