// Exec: what every kernel call needs besides its arguments. Passed by reference to every call.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fathom/device/arena.h"
#include "fathom/os/cpu_info.h"
#include "fathom/os/thread_pool.h"
#include "fathom/trace/recorder.h"

namespace fathom {

/// "op or kernel = variant", given by the user; kernels by our name or a reference name. A pin that
/// cannot apply is an error.
using Pins = std::vector<std::pair<std::string, std::string>>;

/// The row of a layer's selection table that a call comes from; -1: none.
struct SelectionRow {
  int16_t index = -1;
};

class KernelSet;
struct DeviceInfo;
class Stream;
class StreamMarks;
struct SideStreams;

struct Exec {
  Backend backend = Backend::kCpu;
  const KernelSet* kernels = nullptr;  ///< of the device; null only in a dry run without a plan
  ThreadPool* pool = nullptr;          ///< CPU backend; null only in a dry run
  Arena* activations = nullptr;        ///< memory of one step
  Arena* scratch = nullptr;            ///< memory of one call
  Recorder* recorder = nullptr;        ///< null: nothing is recorded
  const Pins* pins = nullptr;          ///< null: none
  int num_threads = 1;                 ///< of the pool; dry runs use it to size workspaces

  Stream* stream = nullptr;            ///< CUDA backend: what calls are given to, in order
  SideStreams* sides = nullptr;        ///< null: all calls of a step follow each other
  StreamMarks* marks = nullptr;        ///< records of a captured step: the clock of that stream
  const DeviceInfo* device = nullptr;  ///< CUDA backend: the GPU in use; dry: the one planned for

  void* workspace =
      nullptr;  ///< set by launch for the running kernel: as many bytes as it asked for

  bool dry() const { return backend == Backend::kDry; }
};

}  // namespace fathom
