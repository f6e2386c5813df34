// What a benchmark must say about the machine and the build it ran on.
#pragma once

#include <string>
#include <string_view>

#include "fathom/bench/row.h"
#include "fathom/device/device.h"
#include "fathom/os/cpu_info.h"

namespace fathom {

/// Of this process, now, on the CPU backend.
BenchConditions bench_conditions(Isa isa, int num_threads);

/// The same on a GPU.
BenchConditions bench_conditions(Isa isa, int num_threads, const DeviceInfo& gpu);

/// The commit that this program was built from: "354fd5b0a1c2", with "+changes" or "unknown".
std::string_view build_commit();

/// Clock of the processor as the system states it, where it does.
Figure cpu_clock_mhz();

}  // namespace fathom
