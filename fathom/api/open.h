// From options to what they name: the machine, the source of a model, the model. Engine and every
// command of the program open models through here.
#pragma once

#include <memory>

#include "fathom/api/options.h"
#include "fathom/models/registry.h"
#include "fathom/os/thread_pool.h"
#include "fathom/runtime/executor/compute.h"

namespace fathom {

/// Threads and kernels of this process, and the GPU if one is asked for.
struct Machine {
  Isa isa = Isa::kPortable;
  std::unique_ptr<const KernelSet> kernels;  ///< of the CPU
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Gpu> gpu;  ///< null: models run on the CPU

  Compute compute() const {
    return {.pool = pool.get(), .cpu_kernels = kernels.get(), .gpu = gpu.get()};
  }
};

/// Errors: Unavailable without the GPU that the options ask for; Unsupported for an instruction set
/// that this machine lacks.
Result<Machine> set_up_machine(const EngineOptions& options);

/// The best instruction set of this machine, or the lower one that the options ask for. Errors:
/// Unsupported for one that it lacks.
Result<Isa> usable_isa(const EngineOptions& options);

/// options.threads, but no more than CPUs that this process may use, which it says; or one a
/// physical core of those.
int thread_count(const EngineOptions& options);

/// The directory or the preset that the options name, cut to options.layers; of a directory with
/// dummy weights in a format, config.json alone. Errors: those of check_source, ModelSource::open,
/// ModelSource::describe and find_preset.
Result<ModelSource> open_source(const EngineOptions& options, SourceUse use = SourceUse::kWeights);

/// How the model runs that the options ask for; its draft layer is there for `--speculative mtp`.
ModelOptions model_options(const EngineOptions& options);

/// Weights of the source, or random ones, in the memory of the machine. Pins that nothing would
/// obey are refused before they are read (check_pins).
OpenOptions open_options(const EngineOptions& options, const Machine& machine);

}  // namespace fathom
