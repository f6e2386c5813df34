#include "fathom/kernels/core/kernel_set/catalog.h"

#include <algorithm>

#include "fathom/base/near_names.h"
#include "fathom/kernels/kernels.h"

namespace fathom {
namespace {

template <Contract K>
std::vector<VariantEntry> variants_of(const KernelSet& kernels) {
  std::vector<VariantEntry> out;
  for (const Variant<K>& v : kernels.table<K>()) {
    out.push_back(
        {v.name, v.needs.isa, v.limits.text, v.traits, v.unit, v.accepts != nullptr, v.needs.sm});
  }
  return out;
}

template <Contract K>
constexpr bool has_bytes() {
  return requires(const typename K::Args& args, Cost& cost) {
    K::bytes(args, cost);
  };
}

template <Contract K>
constexpr bool has_workspace() {
  return requires(const typename K::Args& args) {
    K::workspace(args, 1);
  };
}

constexpr int CPU = 1;
constexpr int CUDA = 2;

const KernelEntry kEntries[] = {
#define FATHOM_KERNEL(family_, group_, Contract_, name_, backends_) \
  KernelEntry{.info = Contract_::kInfo,                             \
              .family = #family_,                                   \
              .group = #group_,                                     \
              .cpu = ((backends_)&CPU) != 0,                        \
              .cuda = ((backends_)&CUDA) != 0,                      \
              .variants = variants_of<Contract_>,                   \
              .signature = &kSignature<Contract_>,                  \
              .counts_bytes = has_bytes<Contract_>(),               \
              .has_workspace = has_workspace<Contract_>()},
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
};

}  // namespace

std::span<const KernelEntry> all_kernels() {
  return kEntries;
}

const KernelEntry* find_kernel(std::string_view name) {
  for (const KernelEntry& e : kEntries) {
    if (e.info.name == name) return &e;
    for (std::string_view reference : e.info.reference_names) {
      if (reference == name) return &e;
    }
  }
  return nullptr;
}

std::vector<std::string> near_kernel_names(std::string_view name) {
  std::vector<std::string> known;
  for (const KernelEntry& e : kEntries) {
    known.emplace_back(e.info.name);
    for (std::string_view reference : e.info.reference_names)
      known.emplace_back(reference);
  }
  return near_names(name, std::move(known));
}

}  // namespace fathom
