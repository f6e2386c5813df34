// The catalogue: all kernels of kernels.def as data.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/kernels/core/kernel_set/kernel_set.h"
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
  /// The variants that a device would use, in order of preference.
  std::vector<VariantEntry> (*variants)(const KernelSet& kernels);
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

}  // namespace fathom
