// The sixty kernels of the reference stack for DeepSeek V2, V3 and R1, by their names there, and
// where each lives here. Which kernel has a name is asked of the catalogue, never written twice.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/bench/row.h"
#include "fathom/kernels/core/kernel_set/catalog.h"

namespace fathom {

struct ReferenceName {
  std::string_view name;
  int published = 0;  ///< place in the published benchmark of 23 kernels, from 1; 0: not in it
  std::string_view category = {};  ///< there: "Norm", "GEMM", ...
};

/// All sixty, in the order of the families.
std::span<const ReferenceName> reference_names();

/// The published 23, in the order of that benchmark.
std::vector<std::string> published_reference_names();

/// What a kernel is for, in the words of the published benchmark; of one outside it, by its family.
std::string_view kernel_category(std::string_view kernel);

struct ReferenceHome {
  std::string_view name;
  std::string home;                     ///< our kernel, "MlaDecode::workspace()", "View"; or "-"
  std::string folder;                   ///< under fathom/; or "-"
  std::string backends;                 ///< "cpu"; or "-"
  std::string status;                   ///< "covered", what it is instead of a kernel, or "missing"
  const KernelEntry* kernel = nullptr;  ///< the kernel that carries it; null for View and missing
  bool covered = false;
};

/// Where `name` lives if `kernels` are what there is.
ReferenceHome find_reference_home(std::string_view name,
                                  std::span<const KernelEntry> kernels = all_kernels());

/// The same for every name of the list.
std::vector<ReferenceHome> reference_homes(std::span<const KernelEntry> kernels = all_kernels());

/// Takes the cover from names whose kernel has no row that passed its check, or one that did not;
/// `status` then says so.
void hold_to_rows(std::vector<ReferenceHome>& homes, std::span<const BenchRow> rows);

/// One line a name, as a Markdown table whose columns line up.
std::string write_reference_table(std::span<const ReferenceHome> homes);

/// "60 of 60 reference names covered"; the names that are not follow after a semicolon.
std::string reference_coverage_line(std::span<const ReferenceHome> homes);

}  // namespace fathom
