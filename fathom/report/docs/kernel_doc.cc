#include "fathom/report/docs/kernel_doc.h"

#include <algorithm>
#include <map>

#include "fathom/base/str_cat.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

std::string in_code(std::string_view text) {
  return str_cat("`", text, "`");
}

void add_once(std::vector<std::string>& names, std::string name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
}

std::string joined(const std::vector<std::string>& names, size_t limit = 100) {
  std::string out;
  for (size_t i = 0; i < std::min(limit, names.size()); ++i)
    str_append(out, str_cat(i == 0 ? "" : ", ", names[i]));
  if (names.size() > limit) str_append(out, str_cat(" and ", names.size() - limit, " more"));
  return out;
}

std::string reference_names_text(const KernelInfo& info) {
  std::vector<std::string> names;
  for (std::string_view name : info.reference_names)
    names.push_back(in_code(name));
  return names.empty() ? "none" : joined(names);
}

// A caller and who calls it in turn; children are callers.
struct Chain {
  std::string text;
  std::vector<Chain> callers;

  Chain& caller(const std::string& name) {
    for (Chain& c : callers)
      if (c.text == name) return c;
    return callers.emplace_back(Chain{name, {}});
  }
};

// From the launch up: the function that launches (where it is not the one that names the op), the
// op, its scopes from inner to outer.
std::vector<std::string> chain_of(const TraceOp& op, const SourceLinks& links) {
  std::vector<std::string> out;
  const std::string launch = links.place(op.launch);
  const std::string named = links.place(op.site);
  if (launch != named) out.push_back(str_cat("launched by ", launch));
  out.push_back(str_cat("**", op.op, "**, ", named));
  for (auto scope = op.scopes.rbegin(); scope != op.scopes.rend(); ++scope)
    out.push_back(str_cat(std::string_view(scope->name), ": ", links.place(scope->site)));
  return out;
}

void append_chain(const Chain& chain, int depth, std::string& out) {
  str_append(out,
             str_cat(std::string(static_cast<size_t>(depth) * 2, ' '), "- ", chain.text, "\n"));
  for (const Chain& caller : chain.callers)
    append_chain(caller, depth + 1, out);
}

struct Use {
  std::vector<std::string> ops;
  std::vector<std::string> flags;  // variations that reach it, in their order
  std::vector<std::string> phases;
  std::vector<std::string> formats;
  std::string first_site;
  Chain chains;
};

std::map<std::string_view, Use> uses_of(std::span<const Variation> variations,
                                        const SourceLinks& links) {
  std::map<std::string_view, Use> uses;
  for (const Variation& v : variations) {
    for (const TracePhase& phase : v.phases) {
      for (const TraceOp& op : phase.ops) {
        Use& use = uses[op.kernel];
        if (use.ops.empty()) use.first_site = links.place(op.site);
        add_once(use.ops, in_code(op.op));
        add_once(use.flags, v.flags == "as recorded" ? v.flags : in_code(v.flags));
        add_once(use.phases, phase.name);
        for (const TraceOperand& o : op.operands()) {
          if (o.kind == OperandKind::kWeight && o.dims.size() > 1)
            add_once(use.formats, std::string(format_name(o.format)));
        }
        Chain* at = &use.chains;
        for (const std::string& step : chain_of(op, links))
          at = &at->caller(step);
      }
    }
  }
  return uses;
}

void append_kernel(const KernelEntry& kernel,
                   const Use& use,
                   const SourceLinks& links,
                   std::string& out) {
  const KernelInfo& info = kernel.info;
  str_append(
      out, str_cat("\n### ", info.name, "\n\n", info.equation.empty() ? "" : in_code(info.equation),
                   info.equation.empty() ? "" : "\n\n"));
  MarkdownTable facts({"what", "value"});
  facts.add({"contract", links.file(contract_path(info.name))});
  facts.add({"reference names", reference_names_text(info)});
  facts.add({"ops", joined(use.ops)});
  facts.add({"phases", joined(use.phases)});
  if (!use.formats.empty()) facts.add({"formats of weights", joined(use.formats)});
  facts.add({"reached by", joined(use.flags, 4)});
  str_append(out, str_cat(facts.str(), "\nCalled by:\n\n"));
  for (const Chain& chain : use.chains.callers)
    append_chain(chain, 0, out);
}

}  // namespace

std::string write_kernel_doc(const Recording& r,
                             std::span<const Variation> variations,
                             const SourceLinks& links) {
  const std::map<std::string_view, Use> uses = uses_of(variations, links);
  MarkdownTable summary({"kernel", "family", "reference names", "ops", "first call site"});
  std::string chapters;
  std::string_view family;
  int64_t count = 0;
  for (const KernelEntry& kernel : all_kernels()) {
    const auto at = uses.find(kernel.info.name);
    if (at == uses.end()) continue;
    const Use& use = at->second;
    ++count;
    summary.add({in_code(kernel.info.name), std::string(kernel.family),
                 reference_names_text(kernel.info), joined(use.ops), use.first_site});
    if (kernel.family != family) {
      family = kernel.family;
      str_append(chapters, str_cat("\n## ", family, "\n"));
    }
    append_kernel(kernel, use, links, chapters);
  }
  return str_cat(
      "# Kernels of ", r.title, "\n\nPrinted by `", r.command,
      "`. Each kernel that a forward pass or the sampler behind it reaches: with the formats, "
      "strategy\nand forms of the recording, or with others that flags choose. Chains read "
      "upwards: "
      "a line is called by the line\nindented below it, up to the model's entry. Kernels that no "
      "op "
      "calls are in [cross_check.md](cross_check.md).\n\n",
      count, " kernels.\n\n", summary.str(), chapters);
}

}  // namespace fathom
