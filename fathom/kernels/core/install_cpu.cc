#include "fathom/kernels/core/catalog.h"
#include "fathom/kernels/kernels.h"

namespace fathom {
namespace {

template <Contract K>
void bind(const VariantTable<K>& source, Isa limit, Backend backend) {
  VariantTable<K> bound;
  for (const Variant<K>& v : source) {
    if (v.needs.isa <= limit) bound.add(v);
  }
  Impl<K>::tables[static_cast<size_t>(backend)] = bound;
}

}  // namespace

void install_cpu_kernels(Isa limit) {
  const Isa usable = limit < best_isa() ? limit : best_isa();
#define FATHOM_KERNEL(family, group, Contract, name, backends) \
  bind<Contract>(name##_cpu, usable, Backend::kCpu);
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
}

void plan_cpu_kernels(Isa isa) {
#define FATHOM_KERNEL(family, group, Contract, name, backends) \
  bind<Contract>(name##_cpu, isa, Backend::kDry);
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
}

void plan_no_kernels() {
#define FATHOM_KERNEL(family, group, Contract, name, backends) \
  Impl<Contract>::tables[static_cast<size_t>(Backend::kDry)] = {};
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
}

}  // namespace fathom
