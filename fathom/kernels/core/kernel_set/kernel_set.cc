#include "fathom/kernels/core/kernel_set/kernel_set.h"

#include <algorithm>

#include "fathom/kernels/kernels.h"

namespace fathom {

KernelSet KernelSet::for_cpu(Isa limit) {
  return planned_for_cpu(std::min(limit, best_isa()));
}

KernelSet KernelSet::planned_for_cpu(Isa isa) {
  KernelSet set(Backend::kCpu);
#define FATHOM_KERNEL(family, group, Contract, name, backends) \
  set.rows_of<Contract>() =                                    \
      keep<Contract>(name##_cpu, [&](const Variant<Contract>& v) { return v.needs.isa <= isa; });
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
  return set;
}

KernelSet KernelSet::batch_invariant() const {
  KernelSet set = *this;
  set.is_batch_invariant_ = true;
#define FATHOM_KERNEL(family, group, Contract, name, backends) \
  set.rows_of<Contract>() = one_form<Contract>(set.rows_of<Contract>());
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
  for (Other& other : set.others_)
    other.rows = other.one_form(other.rows);
  return set;
}

}  // namespace fathom
