// Suites: lists of kernels that are benchmarked together, and the patterns that choose cases.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/bench/preset/steps.h"

namespace fathom {

/// A step of which a suite takes the calls of some kernels alone.
struct PartOfStep {
  std::string_view preset;
  StepPoint point;
  std::vector<std::string_view> kernels;
};

/// "all" (every kernel of the catalogue), "decode", "prefill" (every kernel, cases of that phase),
/// "streaming" (cases that walk through 256 MB once: kernels that memory feeds),
/// "reference23" (the 23 names of the published benchmark at its shapes; ones that are not here
/// give rows with status unavailable; then the calls of the preset that the benchmark is about),
/// "v4" and "v32" (every distinct call of steps of DeepSeek-V4 Flash and Pro, or V3.2, those of
/// kernels that no other model has first; and what has a target besides, docs/performance.md).
struct Suite {
  std::string_view name;
  std::string_view phase;            ///< empty: all
  std::string_view own_cases{};      ///< CaseSpec::suite of its cases; empty: those of no suite
  std::string_view filter{};         ///< pattern over the names of its cases; empty: all
  std::string_view preset{};         ///< whose own calls are timed after the cases; empty: none
  std::vector<std::string> kernels;  ///< our names, or reference names; of a suite of steps those
                                     ///< of `cases`
  // Of a suite of steps:
  std::vector<std::string_view> step_presets{};  ///< whose graphs
  std::vector<StepPoint> points{};
  std::vector<PartOfStep> parts{};
  std::string_view cases{};  ///< pattern over the names of timed cases of `kernels`
};

/// True for a suite whose rows are calls of steps, but for a few timed cases.
bool is_suite_of_steps(std::string_view name);

/// Where a kernel stands in a suite of steps: kernels of V3.2's and V4's own come first, in the
/// order of a step, then those of experts, then all others.
int step_suite_rank(std::string_view kernel);

/// Kernels outside the 23 that have rows at the published points: what a layer needs besides. They
/// come after the 23.
std::vector<std::string> companion_kernels();

/// Errors: InvalidArgument with the known names.
Result<Suite> find_suite(std::string_view name);

std::vector<std::string> suite_names();

/// True if `pattern` matches `text`. A pattern without '*' and '?' matches anywhere in the text;
/// with them it must match the whole: '*' any characters, '?' one.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace fathom
