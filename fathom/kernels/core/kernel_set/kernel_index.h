// The place of each kernel of kernels.def in a KernelSet, known to the compiler. Needs no contract.
#pragma once

namespace fathom {

#define FATHOM_KERNEL(family, group, Contract, name, backends) struct Contract;
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL

namespace internal {

enum KernelIndex : int {

#define FATHOM_KERNEL(family, group, Contract, name, backends) kIndexOf_##name,
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
  kNumListedKernels
};

/// -1: not in kernels.def.
template <class K>
inline constexpr int kKernelIndex = -1;

#define FATHOM_KERNEL(family, group, Contract, name, backends) \
  template <>                                                  \
  inline constexpr int kKernelIndex<Contract> = kIndexOf_##name;
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL

}  // namespace internal
}  // namespace fathom
