// Opens a model for a command: threads, instruction set, weights with a progress bar.
#pragma once

#include <memory>
#include <string>

#include "cli/command.h"
#include "fathom/models/registry.h"
#include "fathom/os/cpu_info.h"
#include "fathom/os/thread_pool.h"

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
};

/// Adds --dtype, --kv-cache-dtype, --block-size, --moe, --attention, --batch-invariant.
void add_model_flags(CLI::App& app, ModelFlags& flags);

/// Those flags as options of the model. Errors: InvalidArgument.
Result<ModelOptions> model_options(const ModelFlags& flags);

/// Threads and kernels of this process.
struct Machine {
  Isa isa = Isa::kPortable;
  std::unique_ptr<ThreadPool> pool;
};

Result<Machine> set_up_machine(const GlobalFlags& globals);

struct OpenedModel {
  std::string title;      ///< directory or preset
  std::string directory;  ///< empty for a preset
  std::unique_ptr<Model> model;
};

/// A checkpoint, or a preset with dummy weights. Refuses what the host's memory cannot hold before
/// anything is read.
Result<OpenedModel> open_for(const ModelFlags& flags,
                             const GlobalFlags& globals,
                             ThreadPool& pool,
                             bool draft = false);

}  // namespace fathom::cli
