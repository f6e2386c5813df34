#include "fathom/kernels/core/kernel_set/kernel_set.h"
#include "fathom/kernels/kernels.h"

namespace fathom {

// Declared for every kernel; defined, and used, for those that kernels.def marks.
#define FATHOM_KERNEL(family, group, Contract, name, backends) \
  extern const VariantTable<Contract> name##_cuda;
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL

namespace {

constexpr int CPU = 0;
constexpr int CUDA = 1;

}  // namespace

KernelSet KernelSet::for_cuda(int sm) {
  KernelSet set(Backend::kCuda);
#define FATHOM_KERNEL(family, group, Contract, name, backends)                                     \
  if constexpr (((backends)&CUDA) != 0) {                                                          \
    set.rows_of<Contract>() =                                                                      \
        keep<Contract>(name##_cuda, [&](const Variant<Contract>& v) { return v.needs.sm <= sm; }); \
  }
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
  return set;
}

}  // namespace fathom
