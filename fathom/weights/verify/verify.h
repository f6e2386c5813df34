// Reads every byte of a model's files and says what is wrong with them: what loading does not ask,
// because it would take as long as reading everything twice.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/os/thread_pool.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/verify/recorded_files.h"

namespace fathom {

/// One file that was read.
struct VerifiedFile {
  enum class Hash : uint8_t { kMatches, kDiffers, kUnrecorded };

  std::string name;
  int64_t bytes = 0;
  Hash hash = Hash::kUnrecorded;
  std::string_view recorded_by{};
};

struct VerifyReport {
  std::vector<VerifiedFile> files;  ///< by name
  int64_t tensors = 0;              ///< whose numbers were looked at
  int64_t bytes = 0;                ///< that were read
  std::vector<std::string> faults;
};

/// Bytes done of all bytes. Calls come from one thread at a time.
using VerifyProgress = std::function<void(int64_t done, int64_t total)>;

/// Reads the recorded files and, where the checkpoint is not null, its shards, each once: hashes
/// those that are recorded, and looks for numbers that are not finite and for scales that are
/// negative, one fault a tensor. What index and shards disagree about is a fault too. Files are
/// shared among the threads. Errors of reading are faults.
VerifyReport verify_files(const std::string& directory,
                          const Checkpoint* checkpoint,
                          ThreadPool& pool,
                          const VerifyProgress& progress = {});

}  // namespace fathom
