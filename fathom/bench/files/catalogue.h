// The kernel catalogue as a page: what every contract says of itself.
#pragma once

#include <span>
#include <string>

#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/core/kernel_set/catalog.h"

namespace fathom {

/// Markdown, one entry a kernel in the order given: reference names, equation, signature, limits,
/// cost, variants with instruction set, limits and flags, cases, source. The text depends on the
/// program alone, not on the machine that prints it: variants are listed whether or not this
/// processor could run them.
std::string write_kernel_catalogue(std::span<const KernelEntry> kernels, const CaseList& cases);

}  // namespace fathom
