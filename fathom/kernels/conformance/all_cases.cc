// Collects the cases of every group that kernels.def names. A group with a line there and no
// add_GROUP_cases does not link: a kernel cannot be listed without something to check it.
#include <algorithm>
#include <vector>

#include "fathom/kernels/conformance/cases.h"

namespace fathom {

#define FATHOM_KERNEL(family, group, Contract, name, backends) void add_##group##_cases(CaseList&);
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL

const CaseList& all_cases() {
  static const CaseList list = [] {
    using AddCases = void (*)(CaseList&);
    std::vector<AddCases> groups;  // a group of several kernels has several lines
    const auto add = [&](AddCases f) {
      if (std::find(groups.begin(), groups.end(), f) == groups.end()) groups.push_back(f);
    };
#define FATHOM_KERNEL(family, group, Contract, name, backends) add(add_##group##_cases);
#include "fathom/kernels/kernels.def"
#undef FATHOM_KERNEL
    (void)add;
    CaseList out;
    for (AddCases f : groups)
      f(out);
    return out;
  }();
  return list;
}

}  // namespace fathom
