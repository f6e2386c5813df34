// What this program is made of, for `fathom version`, `fathom doctor` and reports of faults.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fathom::cli {

/// "portable, avx2, avx512, amx": the instruction sets that kernels were compiled for.
std::string cpu_kernels_built();

/// Name and value of each fact, in the order in which they are printed; the first is the commit.
std::vector<std::pair<std::string, std::string>> build_facts();

}  // namespace fathom::cli
