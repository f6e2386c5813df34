// Which CPUs a thread may run on.
#pragma once

#include <span>
#include <vector>

namespace fathom {

/// CPU numbers the calling thread may run on, ascending. Empty if the system does not tell.
std::vector<int> thread_affinity();

/// Restricts the calling thread to these CPUs. Returns whether the system did it; pinning is an
/// optimisation, and containers may forbid it.
bool set_thread_affinity(std::span<const int> cpus);

}  // namespace fathom
