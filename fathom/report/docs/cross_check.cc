#include "fathom/report/docs/cross_check.h"

#include <algorithm>
#include <map>

#include "fathom/base/str_cat.h"
#include "fathom/bench/suites/reference_names.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

std::string in_code(std::string_view text) {
  return str_cat("`", text, "`");
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names)
    str_append(out, str_cat(out.empty() ? "" : ", ", name));
  return out;
}

std::string kernel_text(const TraceOp& op) {
  if (op.variant.empty()) return in_code(op.kernel);
  return str_cat(in_code(op.kernel), " (", op.variant, ")");
}

std::string standing_text(const KernelStanding& s) {
  if (s.recorded) return "this recording";
  if (s.reached()) return in_code(s.flags);
  return "no op";
}

std::string kernel_table(std::span<const KernelStanding> standings, const SourceLinks& links) {
  MarkdownTable table({"kernel", "contract", "reached with", "ops", "which, or why none"});
  for (const KernelStanding& s : standings) {
    table.add({in_code(s.kernel->info.name), links.file(contract_path(s.kernel->info.name)),
               standing_text(s), str_cat(s.ops.size()),
               s.reached()        ? joined(s.ops)
               : s.reason.empty() ? std::string("found with none of the flags tried")
                                  : std::string(s.reason)});
  }
  return table.str();
}

struct FamilyCount {
  int64_t kernels = 0;
  int64_t recorded = 0;
  int64_t varied = 0;
  int64_t outside = 0;
  int64_t names = 0;
};

std::string family_table(std::span<const KernelStanding> standings) {
  std::vector<std::string> order;
  std::map<std::string, FamilyCount> families;
  const std::string all = "all";
  for (const KernelStanding& s : standings) {
    const std::string family(s.kernel->family);
    if (families.find(family) == families.end()) order.push_back(family);
    for (const std::string& key : {family, all}) {
      FamilyCount& count = families[key];
      ++count.kernels;
      count.recorded += s.recorded ? 1 : 0;
      count.varied += !s.recorded && s.reached() ? 1 : 0;
      count.outside += s.reached() ? 0 : 1;
      count.names += s.kernel->info.reference_names.size;
    }
  }
  order.push_back(all);
  MarkdownTable table({"family", "kernels", "in this recording", "with other flags or models",
                       "called by no op", "reference names"});
  for (const std::string& family : order) {
    const FamilyCount& c = families[family];
    table.add({family, str_cat(c.kernels), str_cat(c.recorded), str_cat(c.varied),
               str_cat(c.outside), str_cat(c.names)});
  }
  return table.str();
}

std::string reference_table(std::span<const KernelStanding> standings) {
  MarkdownTable table({"reference name", "here", "reached with", "ops"});
  for (const ReferenceHome& home : reference_homes()) {
    const KernelStanding* found = nullptr;
    for (const KernelStanding& s : standings)
      if (s.kernel == home.kernel) found = &s;
    table.add({in_code(home.name), in_code(home.home),
               found == nullptr ? home.status : standing_text(*found),
               found == nullptr || !found->reached() ? "none" : joined(found->ops)});
  }
  return table.str();
}

std::string refusal_table(std::span<const Variation> variations) {
  MarkdownTable table({"flags", "why not"});
  for (const Variation& v : variations)
    if (v.phases.empty()) table.add({in_code(v.flags), v.refusal});
  return table.empty() ? std::string{"None.\n"} : table.str();
}

// The ops of the recording with what computes them, and how often in each phase.
std::string op_table(const Recording& r, std::vector<std::string>& failures, int64_t& ops) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> kernels;
  std::map<std::string, std::map<std::string, int64_t>> calls;
  for (const TracePhase& phase : r.phases) {
    for (const TraceOp& op : phase.first_step()) {
      const std::string name(op.op);
      if (kernels.find(name) == kernels.end()) order.push_back(name);
      std::vector<std::string>& known = kernels[name];
      const std::string kernel = kernel_text(op);
      if (std::find(known.begin(), known.end(), kernel) == known.end()) known.push_back(kernel);
      calls[name][phase.name] += op.calls;
      if (find_kernel(op.kernel) == nullptr)
        failures.push_back(str_cat("op ", name, " has no kernel"));
      if (op.variant.empty() && r.has_variants)
        failures.push_back(str_cat("op ", name, ": no variant of ", op.kernel, " is planned"));
    }
  }
  std::vector<std::string> header{"op", "kernels (variant)"};
  for (const TracePhase& phase : r.phases)
    header.push_back(str_cat("calls in ", phase.name));
  MarkdownTable table(std::move(header));
  bool absent = false;
  for (const std::string& name : order) {
    std::vector<std::string> row{in_code(name), joined(kernels[name])};
    for (const TracePhase& phase : r.phases) {
      const int64_t count = calls[name][phase.name];
      absent = absent || count == 0;
      row.push_back(str_cat(count));
    }
    table.add(std::move(row));
  }
  ops = static_cast<int64_t>(order.size());
  if (!absent) return table.str();
  return str_cat(table.str(),
                 "\n0 calls: the phase has no such op; each form of attention has its own.\n");
}

// Each op of a phase as "kernel (variant), 3 calls", kernels in the order of their first calls.
std::map<std::string_view, std::string> calls_by_op(const TracePhase& phase) {
  std::map<std::string_view, std::vector<std::string>> kernels;
  std::map<std::string_view, int64_t> calls;
  for (const TraceOp& op : phase.first_step()) {
    const std::string text = kernel_text(op);
    std::vector<std::string>& known = kernels[op.op];
    if (std::find(known.begin(), known.end(), text) == known.end()) known.push_back(text);
    calls[op.op] += op.calls;
  }
  std::map<std::string_view, std::string> out;
  for (const auto& [op, names] : kernels) {
    out[op] = str_cat(joined(names), ", ", calls[op], calls[op] == 1 ? " call" : " calls");
  }
  return out;
}

const TracePhase* find_phase(const Variation& v, std::string_view name) {
  for (const TracePhase& phase : v.phases)
    if (phase.name == name) return &phase;
  return nullptr;
}

// What drafts add to the passes that a recording without them has: the ops that differ.
std::string drafting_text(std::span<const Variation> variations) {
  const auto drafting = std::find_if(variations.begin(), variations.end(), [](const Variation& v) {
    return v.flags == kDraftingFlags && !v.phases.empty();
  });
  if (drafting == variations.end()) return {};
  constexpr std::string_view kPairs[][2] = {{"draft", "draft_chain"}, {"decode", "verify"}};
  MarkdownTable table({"phase", "op", "with drafts", "without"});
  std::string titles;
  for (const auto& [plain_name, name] : kPairs) {
    const TracePhase* plain = find_phase(*drafting, plain_name);
    const TracePhase* phase = find_phase(*drafting, name);
    if (plain == nullptr || phase == nullptr) continue;
    str_append(titles, str_cat("- `", name, "` for `", plain_name, "`. ", phase->title, "\n"));
    auto without = calls_by_op(*plain);
    for (const auto& [op, calls] : calls_by_op(*phase)) {
      const std::string before = without.contains(op) ? without[op] : "none";
      without.erase(op);
      if (calls != before) table.add({in_code(name), in_code(op), calls, before});
    }
    for (const auto& [op, calls] : without)
      table.add({in_code(name), in_code(op), "none", calls});
  }
  return str_cat("\n## With drafts\n\nWith `", kDraftingFlags,
                 "` phases are as follows. Ops that are not listed are those of the phase without\n"
                 "drafts, on more tokens. Taking drafts back is no op.\n\n",
                 titles, "\n", table.str());
}

int64_t count_if(std::span<const KernelStanding> standings, bool (*test)(const KernelStanding&)) {
  return std::count_if(standings.begin(), standings.end(), test);
}

}  // namespace

std::vector<KernelStanding> kernel_standings(const Recording& recording,
                                             std::span<const Variation> variations) {
  std::map<std::string_view, KernelStanding> by_name;
  for (const KernelEntry& kernel : all_kernels()) {
    KernelStanding& s = by_name[kernel.info.name];
    s.kernel = &kernel;
    s.reason = kernel.info.outside;
  }
  for (const TracePhase& phase : recording.phases)
    for (const TraceOp& op : phase.ops)
      by_name[op.kernel].recorded = true;
  for (const Variation& v : variations) {
    for (const TracePhase& phase : v.phases) {
      for (const TraceOp& op : phase.ops) {
        KernelStanding& s = by_name[op.kernel];
        const std::string name = in_code(op.op);
        if (s.ops.empty()) s.flags = v.flags;
        if (std::find(s.ops.begin(), s.ops.end(), name) == s.ops.end()) s.ops.push_back(name);
      }
    }
  }
  std::vector<KernelStanding> out;
  for (const KernelEntry& kernel : all_kernels())
    out.push_back(by_name[kernel.info.name]);
  return out;
}

CrossCheck cross_check(const Recording& r,
                       std::span<const Variation> variations,
                       const SourceLinks& links) {
  CrossCheck out;
  const std::vector<KernelStanding> standings = kernel_standings(r, variations);
  const int64_t reached = count_if(standings, [](const KernelStanding& s) { return s.reached(); });
  const int64_t recorded = count_if(standings, [](const KernelStanding& s) { return s.recorded; });
  const int64_t reasoned = count_if(
      standings, [](const KernelStanding& s) { return !s.reached() && !s.reason.empty(); });
  for (const KernelStanding& s : standings) {
    if (s.reached() || !s.reason.empty() || variations.empty()) continue;
    out.failures.push_back(str_cat("kernel ", s.kernel->info.name,
                                   " is reached by no op, and no reason is given for it"));
  }
  int64_t ops = 0;
  const std::string ops_text = op_table(r, out.failures, ops);
  const std::vector<ReferenceHome> homes = reference_homes();
  const int64_t run = std::count_if(variations.begin(), variations.end(),
                                    [](const Variation& v) { return !v.phases.empty(); });
  out.text = str_cat(
      "# Kernels against ops, of ", r.title, "\n\nPrinted by `", r.command,
      "`. What an op reaches was found by running the model code on shapes: as\nrecorded, and in ",
      run - 1,
      " other ways (each `--format` with each `--moe` and each form of attention, the other\n"
      "built-in models, drafts as trees, and sampling).\n\n",
      "- ", standings.size(), " kernels in the catalogue: ", recorded, " in this recording, ",
      reached - recorded, " reached in other ways, ", reasoned, " called by no op, ",
      static_cast<int64_t>(standings.size()) - reached - reasoned, " without a reason\n- ", ops,
      " ops in this recording, each with a kernel\n- ", reference_coverage_line(homes),
      "\n\n## Families\n\n", family_table(standings), "\n## Kernels\n\n",
      kernel_table(standings, links), "\n## Ops of this recording\n\n", ops_text,
      drafting_text(variations), "\n## Names in the reference stack\n\n",
      reference_table(standings), "\n## What this model cannot run\n\n", refusal_table(variations));
  return out;
}

std::vector<std::string> blank_cells(std::string_view markdown) {
  std::vector<std::string> out;
  std::vector<std::string> header;
  bool fenced = false;
  int64_t number = 0;
  while (!markdown.empty()) {
    const size_t end = std::min(markdown.find('\n'), markdown.size());
    const std::string_view line = markdown.substr(0, end);
    markdown.remove_prefix(std::min(end + 1, markdown.size()));
    ++number;
    if (line.starts_with("```")) fenced = !fenced;
    if (fenced || !line.starts_with("|")) {
      header.clear();
      continue;
    }
    std::vector<std::string> cells;
    std::string cell;
    for (size_t i = 1; i < line.size(); ++i) {
      if (line[i] == '|' && line[i - 1] != '\\') {
        const size_t first = cell.find_first_not_of(' ');
        cells.push_back(first == std::string::npos
                            ? std::string{}
                            : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
        cell.clear();
      } else {
        cell += line[i];
      }
    }
    if (header.empty()) {
      header = cells;
      continue;
    }
    for (size_t c = 0; c < cells.size(); ++c) {
      if (!cells[c].empty() && cells[c] != "-" && cells[c] != "—") continue;
      out.push_back(str_cat("line ", number, ", column ", c < header.size() ? header[c] : "?"));
    }
  }
  return out;
}

}  // namespace fathom
