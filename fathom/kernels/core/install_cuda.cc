#include "fathom/kernels/core/catalog.h"
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

template <Contract K>
void bind(const VariantTable<K>& source, int capability, Backend backend) {
  VariantTable<K> bound;
  for (const Variant<K>& v : source) {
    if (v.needs.sm <= capability) bound.add(v);
  }
  Impl<K>::tables[static_cast<size_t>(backend)] = bound;
}

void bind_all(int capability, Backend backend) {
#define FATHOM_KERNEL(family, group, Contract, name, backends) \
  if constexpr (((backends)&CUDA) != 0) bind<Contract>(name##_cuda, capability, backend);
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
}

}  // namespace

void install_cuda_kernels(int capability) {
  bind_all(capability, Backend::kCuda);
}

void plan_cuda_kernels(int capability) {
  bind_all(capability, Backend::kDry);
}

}  // namespace fathom
