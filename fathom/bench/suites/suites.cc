#include "fathom/bench/suites/suites.h"

#include "fathom/bench/suites/reference_names.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/core/kernel_set/catalog.h"

namespace fathom {
namespace {

struct SuiteName {
  std::string_view name;
  std::string_view phase{};
  std::string_view filter{};
};

constexpr SuiteName kSuites[] = {{"all"},
                                 {"decode", "decode"},
                                 {"prefill", "prefill"},
                                 {"streaming", "", "*chunk_*"},
                                 {kReferenceSuite}};

}  // namespace

std::vector<std::string> companion_kernels() {
  return {"bf16_gemm", "kv_write", "concat_absorbed_q", "permute_rows"};
}

std::vector<std::string> suite_names() {
  std::vector<std::string> names;
  for (const SuiteName& s : kSuites)
    names.emplace_back(s.name);
  return names;
}

Result<Suite> find_suite(std::string_view name) {
  for (const SuiteName& s : kSuites) {
    if (s.name != name) continue;
    Suite suite{.name = s.name, .phase = s.phase, .filter = s.filter, .kernels = {}};
    if (name == kReferenceSuite) {
      suite.own_cases = kReferenceSuite;
      suite.preset = "deepseek-r1-nvfp4";
      suite.kernels = published_reference_names();
      for (std::string& companion : companion_kernels())
        suite.kernels.push_back(std::move(companion));
    } else {
      for (const KernelEntry& kernel : all_kernels()) {
        suite.kernels.emplace_back(kernel.info.name);
      }
    }
    return suite;
  }
  std::string known;
  for (const SuiteName& s : kSuites) {
    str_append(known, str_cat(known.empty() ? "" : ", ", s.name));
  }
  return invalid_argument(str_cat("no suite '", name, "'; known are ", known));
}

bool matches_pattern(std::string_view pattern, std::string_view text) {
  if (pattern.find_first_of("*?") == std::string_view::npos) {
    return text.find(pattern) != std::string_view::npos;
  }
  // Greedy with one point to come back to: the last star and how much it has taken.
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*')
    ++p;
  return p == pattern.size();
}

}  // namespace fathom
