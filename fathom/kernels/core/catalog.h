// The catalogue: all kernels of kernels.def as data.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/kernels/core/contract.h"
#include "fathom/os/cpu_info.h"
#include "fathom/trace/record.h"

namespace fathom {

struct VariantEntry {
  std::string_view name;
  Isa needs;
  std::string_view limits;
  uint32_t traits;
  MathUnit unit;
  bool some_formats = false;  ///< takes some of the formats or layouts of the contract only
  int sm = 0;  ///< of a variant for a GPU: the compute capability it needs, times ten
};

struct KernelEntry {
  KernelInfo info;
  std::string_view family;
  std::string_view group;
  bool cpu = false;
  bool cuda = false;
  /// The variants this process would use on that backend, in order of preference.
  std::vector<VariantEntry> (*variants)(Backend backend);
  /// The variants of the CPU backend that are in this program, for whatever machine.
  std::vector<VariantEntry> (*built)() = nullptr;
  const Signature* signature = nullptr;
  bool counts_bytes = false;  ///< the contract counts traffic; otherwise it is each operand once
  bool has_workspace = false;
};

/// Every kernel, in the order of kernels.def.
std::span<const KernelEntry> all_kernels();

/// By our name or by a reference name; null if there is none.
const KernelEntry* find_kernel(std::string_view name);

/// Names close to `name`, at most three, for "did you mean".
std::vector<std::string> near_kernel_names(std::string_view name);

/// Binds the CPU variants whose instruction set this machine has, none above `limit`. Called once,
/// before the first launch. Calling it again with another limit rebinds (tests, `--isa`).
void install_cpu_kernels(Isa limit);

/// Binds the CUDA variants that a GPU of this compute capability (DeviceInfo::sm) runs. Does
/// nothing in a build without the CUDA backend.
void install_cuda_kernels(int sm);

/// Dry runs record the variant that a CPU with that instruction set would take, whatever this
/// machine is, and refuse calls that it could not run. Without a plan they record no variant.
void plan_cpu_kernels(Isa isa);

/// The same for a GPU. A build without the CUDA backend knows no variants of it: nothing is
/// planned.
void plan_cuda_kernels(int sm);

/// Ends a plan.
void plan_no_kernels();

}  // namespace fathom
