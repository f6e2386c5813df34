#include "fathom/bench/suites/suites.h"

#include <algorithm>
#include <iterator>

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

struct StepSuite {
  std::string_view name;
  std::vector<std::string_view> presets;
};

const std::vector<StepSuite>& step_suites() {
  static const std::vector<StepSuite> suites = {{"v4", {"deepseek-v4-flash", "deepseek-v4-pro"}},
                                                {"v32", {"deepseek-v3.2"}}};
  return suites;
}

const StepSuite* find_step_suite(std::string_view name) {
  const auto at = std::ranges::find(step_suites(), name, &StepSuite::name);
  return at == step_suites().end() ? nullptr : &*at;
}

/// Decode of some batches over a short and a long context, and a chunk of a prompt behind a prefix
/// that is long enough for indexers to choose.
std::vector<StepPoint> suite_points() {
  std::vector<StepPoint> points;
  for (const int64_t keys : {4096, 131072})
    for (const int64_t batch : {1, 8, 32, 64, 128})
      points.push_back({"decode", batch, 1, keys});
  points.push_back({"prefill", 1, 2048, 4096});
  return points;
}

/// What has a target and is in no step above: a context of 65,536 keys, prompts of 1,024 and 4,096
/// tokens through what Flash's layers have in common.
std::vector<PartOfStep> parts_with_targets(std::string_view suite) {
  const bool v4 = suite == "v4";
  const std::string_view preset = v4 ? "deepseek-v4-flash" : "deepseek-v3.2";
  std::vector<PartOfStep> parts;
  for (const int64_t batch : {1, 8, 32, 128})
    parts.push_back({preset,
                     {"decode", batch, 1, 65536},
                     {"sparse_mla_decode", "index_logits_paged", "topk_rows"}});
  for (const int64_t tokens : {1024, 4096}) {
    if (v4)
      parts.push_back({preset,
                       {"prefill", 1, tokens, 4096},
                       {"mhc_p*", "fp8_block_*", "nvfp4_group_gemm", "silu_mul"}});
  }
  return parts;
}

constexpr std::string_view kRanks[] = {
    "sparse_mla*", "index_*",    "topk_rows*",   "qnorm_rope_kv_write",
    "compress_*",  "mhc_*",      "hash_route",   "topk_sqrtsoftplus",
    "visible_*",   "ring_slots", "*group_gemm*", "chosen_experts*",
    "*moe*",       "route_*",    "permute_rows", "unpermute_*"};

}  // namespace

std::vector<std::string> companion_kernels() {
  return {"bf16_gemm", "kv_write", "concat_absorbed_q", "permute_rows"};
}

std::vector<std::string> suite_names() {
  std::vector<std::string> names;
  for (const SuiteName& s : kSuites)
    names.emplace_back(s.name);
  for (const StepSuite& s : step_suites())
    names.emplace_back(s.name);
  return names;
}

bool is_suite_of_steps(std::string_view name) {
  return find_step_suite(name) != nullptr;
}

int step_suite_rank(std::string_view kernel) {
  const auto at = std::ranges::find_if(
      kRanks, [&](std::string_view pattern) { return matches_pattern(pattern, kernel); });
  return static_cast<int>(at - std::begin(kRanks));
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
  if (const StepSuite* s = find_step_suite(name)) {
    Suite suite{.name = s->name,
                .phase = {},
                .kernels = {"sparse_mla_decode"},
                .step_presets = s->presets,
                .points = suite_points(),
                .parts = parts_with_targets(name),
                .cases = name == "v4" ? "v4_flash_t*" : "v32_t*"};
    if (name == "v4") suite.kernels.emplace_back("mhc_chain");
    return suite;
  }
  std::string known;
  for (const std::string& s : suite_names())
    str_append(known, str_cat(known.empty() ? "" : ", ", s));
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
