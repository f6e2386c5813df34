#include "fathom/report/docs/source_links.h"

#include "fathom/base/str_cat.h"
#include "fathom/kernels/core/kernel_set/catalog.h"

namespace fathom {

std::string SourceLinks::file(std::string_view path, int line) const {
  const std::string_view project = project_path(path);
  const std::string_view name = project.substr(project.rfind('/') + 1);
  const bool with_line = lines && line > 0;
  const std::string text = str_cat(name, with_line ? str_cat(":", line) : std::string{});
  if (!linked) return str_cat(project, with_line ? str_cat(":", line) : std::string{});
  return str_cat("[", text, "](", root, "/", project,
                 with_line ? str_cat("#L", line) : std::string{}, ")");
}

std::string SourceLinks::place(const CallSite& site) const {
  const std::string_view function = site.function;
  // Kernels are rows of a table: what launches them is a function without a name of its own.
  if (function == "operator()" || function == "_FUN") {
    return str_cat("a row of the table in ", file(site.file, site.line));
  }
  return str_cat("`", function, "()` in ", file(site.file, site.line));
}

std::string contract_path(std::string_view kernel) {
  const KernelEntry* entry = find_kernel(kernel);
  if (entry == nullptr) return {};
  return str_cat("fathom/kernels/", entry->family, "/", entry->group, "/", entry->group, ".h");
}

}  // namespace fathom
