// cross_check.md: kernels against ops, both ways, all counts computed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/report/docs/source_links.h"
#include "fathom/report/record/dry_trace.h"
#include "fathom/report/recording.h"

namespace fathom {

/// Where a kernel stands: reached by an op, or outside of every forward pass with the reason.
struct KernelStanding {
  const KernelEntry* kernel = nullptr;
  bool recorded = false;         ///< by the recording itself
  std::vector<std::string> ops;  ///< over all variations
  std::string flags;             ///< the first variation that reaches it
  std::string_view reason;  ///< why no op reaches it, by its contract; empty if it does not say

  bool reached() const { return !ops.empty(); }
};

/// One entry a kernel of the catalogue.
std::vector<KernelStanding> kernel_standings(const Recording& recording,
                                             std::span<const Variation> variations);

struct CrossCheck {
  std::string text;  ///< the page
  /// A kernel without op or reason (of that nothing is known without variations), an op without
  /// variant, ...
  std::vector<std::string> failures;
};

CrossCheck cross_check(const Recording& recording,
                       std::span<const Variation> variations,
                       const SourceLinks& links);

/// Cells of Markdown tables that hold a dash or nothing: "line 12, column bytes". Such a table is
/// not finished.
std::vector<std::string> blank_cells(std::string_view markdown);

}  // namespace fathom
