#include "cli/about/build_facts.h"

#include <algorithm>

#include "fathom/base/str_cat.h"
#include "fathom/bench/machine/conditions.h"
#include "fathom/device/device.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#ifdef FATHOM_WITH_SERVER
#include "fathom/grammar/grammar.h"
#endif

namespace fathom::cli {
namespace {

std::string compiler() {
#ifdef __clang__
  return str_cat("Clang ", std::string_view(__clang_version__));
#else
  return str_cat("GCC ", std::string_view(__VERSION__));
#endif
}

std::string recording() {
#ifdef FATHOM_TRACE
  return "compiled in";
#else
  return "left out";
#endif
}

std::string server() {
#ifdef FATHOM_WITH_SERVER
  return grammar_available() ? "with constrained decoding" : "without constrained decoding";
#else
  return "left out";
#endif
}

std::string checks() {
  std::string out;
#ifdef FATHOM_SANITIZED
  out = "sanitizers";
#endif
#ifdef FATHOM_FAILPOINTS
  str_append(out, str_cat(out.empty() ? "" : ", ", "fault injection"));
#endif
  return out.empty() ? "none" : out;
}

}  // namespace

std::string cpu_kernels_built() {
  const KernelSet all = KernelSet::planned_for_cpu(Isa::kAmx);
  std::string out;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    const auto is_of_isa = [&](const VariantEntry& v) { return v.needs == isa; };
    const auto has_one = [&](const KernelEntry& k) {
      const auto built = k.variants(all);
      return std::any_of(built.begin(), built.end(), is_of_isa);
    };
    const auto kernels = all_kernels();
    if (std::any_of(kernels.begin(), kernels.end(), has_one))
      str_append(out, str_cat(out.empty() ? "" : ", ", isa_name(isa)));
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> build_facts() {
  return {{"commit", std::string(build_commit())},
          {"compiler", compiler()},
          {"build_type", FATHOM_BUILD_TYPE},
          {"cpu_kernels", cpu_kernels_built()},
          {"cuda", cuda_is_built() ? "compiled in" : "left out"},
          {"server", server()},
          {"recording", recording()},
          {"checks", checks()}};
}

}  // namespace fathom::cli
