// Opens a model for a command: threads, instruction set, weights with a progress bar.
#pragma once

#include <memory>
#include <string>

#include "cli/command.h"
#include "fathom/models/registry.h"
#include "fathom/os/cpu_info.h"
#include "fathom/os/thread_pool.h"
#include "fathom/runtime/forward_session.h"
#include "fathom/runtime/gpu/gpu.h"
#include "fathom/weights/checkpoint.h"
#include "fathom/weights/quant_config.h"

namespace fathom::cli {

/// How a model runs, as flags say it.
struct ModelFlags {
  std::string model;
  std::string preset;
  std::string format;
  int64_t layers = 0;  ///< of a preset: its first layers only; 0: all
  std::string dtype = "bf16";
  std::string kv_cache_dtype = "auto";
  std::string moe = "auto";
  std::string attention = "auto";
  int64_t block_size = 64;
  int64_t prefill_chunk = 1024;
  bool dummy_weights = false;
  bool batch_invariant = false;
  std::string device = "cpu";
  std::string cuda_graphs = "on";
  /// Of `run` without --max-model-len: the context has room for the prompt and --max-tokens.
  bool context_for_answer = false;
};

/// Adds --dtype, --kv-cache-dtype, --block-size, --moe, --attention, --batch-invariant.
void add_model_flags(CLI::App& app, ModelFlags& flags);

/// Adds --device and --cuda-graphs, for commands that run models where they are asked to.
void add_device_flags(CLI::App& app, ModelFlags& flags);

/// Those flags as options of the model. Errors: InvalidArgument.
Result<ModelOptions> model_options(const ModelFlags& flags);

/// Refuses flags of which one would do nothing: MODEL with --as, and --format or --layers, which
/// change a built-in description, with MODEL. Errors: InvalidArgument.
Status check_source(const ModelFlags& flags);

/// Refuses a --max-model-len beyond the context of the model. Errors: InvalidArgument.
Status check_max_model_len(int64_t length, const ModelConfig& config);

/// A model folder before its weights are read.
struct OpenedFolder {
  Checkpoint checkpoint;
  ModelConfig config;
  QuantConfig declared;  ///< for the reader: the tensors decide how weights are loaded
};

/// What every command that opens a checkpoint reads first, so that all of them refuse the same.
/// Errors: those of Checkpoint::open, parse_config and read_quant_config.
Result<OpenedFolder> open_folder(const std::string& directory);

/// Threads and kernels of this process, and the GPU if one is asked for.
struct Machine {
  Isa isa = Isa::kPortable;
  std::unique_ptr<const KernelSet> kernels;  ///< of the CPU
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Gpu> gpu;  ///< null: models run on the CPU
};

/// Errors: Unavailable without the GPU that `device` ("cpu" or "cuda") asks for.
Result<Machine> set_up_machine(const GlobalFlags& globals, const std::string& device = "cpu");

/// Where the sessions of a command run.
void place_session(const Machine& machine, const ModelFlags& flags, SessionOptions& options);

struct OpenedModel {
  std::string title;      ///< directory or preset
  std::string directory;  ///< empty for a preset
  std::unique_ptr<Model> model;
};

/// A checkpoint, or a preset with dummy weights, in the memory of the machine's GPU if it has one.
/// Refuses before anything is read what that memory cannot hold and what the GPU has no kernels
/// for.
Result<OpenedModel> open_for(const ModelFlags& flags,
                             const GlobalFlags& globals,
                             const Machine& machine,
                             bool draft = false);

/// As above on the CPU.
Result<OpenedModel> open_for(const ModelFlags& flags,
                             const GlobalFlags& globals,
                             ThreadPool& pool,
                             bool draft = false);

}  // namespace fathom::cli
