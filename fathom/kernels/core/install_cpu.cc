#include "fathom/kernels/core/catalog.h"
#include "fathom/kernels/kernels.h"

namespace fathom {
namespace {

template <Contract K>
void bind(const VariantTable<K>& source, Isa limit) {
  VariantTable<K> bound;
  for (const Variant<K>& v : source) {
    if (v.needs <= limit) bound.add(v);
  }
  Impl<K>::tables[static_cast<size_t>(Backend::kCpu)] = bound;
}

}  // namespace

void install_cpu_kernels(Isa limit) {
  const Isa usable = limit < best_isa() ? limit : best_isa();
#define FATHOM_KERNEL(family, group, Contract, name, backends) bind<Contract>(name##_cpu, usable);
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
}

}  // namespace fathom
