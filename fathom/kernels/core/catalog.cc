#include "fathom/kernels/core/catalog.h"

#include <algorithm>

#include "fathom/kernels/kernels.h"

namespace fathom {
namespace {

template <Contract K>
std::vector<VariantEntry> variants_of(Backend backend) {
  std::vector<VariantEntry> out;
  for (const Variant<K>& v : Impl<K>::tables[static_cast<size_t>(backend)]) {
    out.push_back({v.name, v.needs, v.limits.text, v.traits, v.unit});
  }
  return out;
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
              .variants = variants_of<Contract_>},
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
};

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

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
  std::vector<std::pair<size_t, std::string>> scored;
  for (const KernelEntry& e : kEntries) {
    scored.emplace_back(edit_distance(name, e.info.name), e.info.name);
    for (std::string_view reference : e.info.reference_names) {
      scored.emplace_back(edit_distance(name, reference), reference);
    }
  }
  std::sort(scored.begin(), scored.end());
  std::vector<std::string> out;
  for (const auto& [distance, text] : scored) {
    if (out.size() < 3 && distance <= name.size() / 2 + 2) out.push_back(text);
  }
  return out;
}

}  // namespace fathom
