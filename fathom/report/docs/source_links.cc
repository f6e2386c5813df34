#include "fathom/report/docs/source_links.h"

#include <map>
#include <utility>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/kernels/core/kernel_set/catalog.h"

namespace fathom {
namespace {

/// "[text](target)": where its target begins and ends.
struct LinkTarget {
  size_t begin, end;
};

std::vector<LinkTarget> link_targets(std::string_view page) {
  std::vector<LinkTarget> out;
  for (size_t at = page.find("]("); at != page.npos; at = page.find("](", at)) {
    const size_t begin = at + 2;
    const size_t end = page.find_first_of(") \n", begin);
    if (end != page.npos && page[end] == ')') out.push_back({begin, end});
    at = begin;
  }
  return out;
}

}  // namespace

std::string with_shared_links(std::string_view page) {
  const std::vector<LinkTarget> links = link_targets(page);
  std::map<std::string_view, int> uses;
  for (const LinkTarget& link : links)
    ++uses[page.substr(link.begin, link.end - link.begin)];

  std::map<std::string_view, size_t> numbers;
  std::string out, definitions;
  size_t copied = 0;
  for (const LinkTarget& link : links) {
    const std::string_view target = page.substr(link.begin, link.end - link.begin);
    if (uses[target] < 2) continue;
    const auto [number, is_new] = numbers.try_emplace(target, numbers.size() + 1);
    if (is_new) str_append(definitions, str_cat("[", number->second, "]: ", target, "\n"));
    str_append(out, page.substr(copied, link.begin - 1 - copied));
    str_append(out, str_cat("[", number->second, "]"));
    copied = link.end + 1;
  }
  str_append(out, page.substr(copied));
  if (!definitions.empty()) str_append(out, str_cat("\n", definitions));
  return out;
}

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
