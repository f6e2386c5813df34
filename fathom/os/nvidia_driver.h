// The NVIDIA driver of this machine as its kernel shows it, which needs no library of CUDA: a
// program without the CUDA backend can tell a machine that has GPUs from one that has none.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace fathom {

struct NvidiaDriver {
  std::string version;            ///< "570.86.15"; empty where it is written in a way not known
  std::vector<std::string> gpus;  ///< "NVIDIA H200", one a card
};

/// The driver below this directory of /proc, or nothing where none is loaded.
std::optional<NvidiaDriver> nvidia_driver(const std::string& directory = "/proc/driver/nvidia");

}  // namespace fathom
