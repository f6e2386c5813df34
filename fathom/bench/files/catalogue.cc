#include "fathom/bench/files/catalogue.h"

#include <map>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {
namespace {

constexpr std::string_view kHead =
    "# Kernel catalogue\n"
    "\n"
    "Printed from the contracts by `fathom bench kernel --catalogue`; `./dev docs` writes it "
    "again.\n"
    "Signatures are in the shape language of fathom/kernels/core/contract/signature.h: "
    "`name[axes]:formats`,\n"
    "`?` marks an operand that may be left out, one on both sides is updated in place. FLOPs are "
    "those of\n"
    "the equation (a multiply-add is 2). The first variant whose limits hold runs.\n";

std::string yes_no(bool value) {
  return value ? "yes" : "no";
}

std::string in_code(std::string_view text) {
  return str_cat("`", text, "`");
}

/// Bars would end the cell of a table.
std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string reference_names_of(const KernelInfo& info) {
  std::string out;
  for (std::string_view name : info.reference_names)
    str_append(out, str_cat(out.empty() ? "" : ", ", in_code(name)));
  return out.empty() ? "none" : out;
}

std::string unit_text(MathUnit unit) {
  switch (unit) {
    case MathUnit::kF32:
      return "f32";
    case MathUnit::kBf16:
      return "bf16";
    case MathUnit::kFp8:
      return "fp8";
    case MathUnit::kFp4:
      return "fp4";
    case MathUnit::kInt8:
      return "int8";
  }
  return {};
}

/// Signatures are longer than a line of prose: broken between operands.
void append_signature(std::string& out, std::string_view signature) {
  constexpr size_t kWidth = 96;
  out += "```text\n";
  size_t column = 0;
  while (!signature.empty()) {
    const size_t space = signature.find(' ');
    const std::string_view word = signature.substr(0, space);
    if (column > 0 && column + 1 + word.size() > kWidth) {
      out += "\n    ";
      column = 4;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    signature.remove_prefix(space == std::string_view::npos ? signature.size() : space + 1);
  }
  out += "\n```\n\n";
}

std::string flops_text(std::string_view flops) {
  if (flops.empty()) return "not stated";
  if (flops.front() == '~') return std::string(flops.substr(1));
  return in_code(flops);
}

void append_variants(std::string& out, const KernelEntry& kernel, const KernelSet& all) {
  out +=
      "| backend | variant | instruction set | limits | math | deterministic | batch invariant |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const VariantEntry& v : kernel.variants(all)) {
    std::string limits = v.limits.empty() ? "" : in_code(cell(v.limits));
    if (v.some_formats) limits += limits.empty() ? "some formats" : ", some formats";
    str_append(out, str_cat("| cpu | ", v.name, " | ", isa_name(v.needs), " | ",
                            limits.empty() ? "none" : limits, " | ", unit_text(v.unit), " | ",
                            yes_no((v.traits & kDeterministic) != 0), " | ",
                            yes_no((v.traits & kBatchInvariant) != 0), " |\n"));
  }
  out += '\n';
}

void append_cases(std::string& out, const std::vector<const Case*>& cases) {
  int small = 0;
  int timed = 0;
  std::map<std::string, int> of_suites;
  std::string names;
  for (const Case* c : cases) {
    if (!c->spec.suite.empty()) {
      ++of_suites[c->spec.suite];
      continue;
    }
    if (!c->spec.bench) {
      ++small;
      continue;
    }
    ++timed;
    str_append(names, str_cat(names.empty() ? ": " : ", ", in_code(c->spec.name)));
  }
  str_append(out, str_cat("Cases: ", small, " for tests, ", timed, " timed", names));
  for (const auto& [suite, count] : of_suites)
    str_append(out, str_cat("; ", count, " of the suite ", suite));
  out += "\n\n";
}

void append_kernel(std::string& out,
                   const KernelEntry& kernel,
                   const KernelSet& all,
                   const CaseList& cases) {
  const KernelInfo& info = kernel.info;
  str_append(out, str_cat("### ", info.name, "\n\n"));
  str_append(out, str_cat("Reference names: ", reference_names_of(info), "\n\n"));
  str_append(out, str_cat("Equation: ", in_code(info.equation), "\n\n"));
  append_signature(out, info.signature);
  str_append(out, str_cat("Limits: ", info.limits.empty() ? "none" : in_code(info.limits), "\n\n"));
  str_append(out, str_cat("Cost: FLOPs ", flops_text(info.flops), "; bytes ",
                          kernel.counts_bytes ? "counted by the contract" : "each operand once",
                          "; scratch memory ", yes_no(kernel.has_workspace), "\n\n"));
  append_variants(out, kernel, all);
  append_cases(out, cases.of(info.name));
  str_append(out, str_cat("Source: ", info.source.empty() ? "definition" : info.source, "\n\n"));
}

}  // namespace

std::string write_kernel_catalogue(std::span<const KernelEntry> kernels, const CaseList& cases) {
  const KernelSet all = KernelSet::planned_for_cpu(Isa::kAmx);
  std::string out(kHead);
  std::string_view family;
  std::string_view group;
  for (const KernelEntry& kernel : kernels) {
    if (kernel.family != family || kernel.group != group) {
      family = kernel.family;
      group = kernel.group;
      str_append(out, str_cat("\n## ", family, "/", group, "\n"));
    }
    out += '\n';
    append_kernel(out, kernel, all, cases);
    while (out.ends_with("\n\n"))
      out.pop_back();
  }
  return out;
}

}  // namespace fathom
