#include "fathom/report/trace_files.h"

#include <algorithm>
#include <filesystem>

#include "fathom/base/str_cat.h"
#include "fathom/bench/files/peaks_file.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"
#include "fathom/report/docs/config_doc.h"
#include "fathom/report/docs/cross_check.h"
#include "fathom/report/docs/graph_doc.h"
#include "fathom/report/docs/kernel_doc.h"
#include "fathom/report/docs/op_doc.h"
#include "fathom/report/docs/share_doc.h"
#include "fathom/report/files/ops_csv.h"
#include "fathom/report/pictures/layer_picture.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNames[] = {
    "config.md",  "execution_graph.md", "ops.md",  "kernels.md",  "cross_check.md", "share.md",
    "decode.svg", "layer.svg",          "ops.csv", "summary.csv", "trace.json",     "peaks.json"};

// One of ours, or one that was being written when a run was interrupted.
bool is_trace_file(std::string_view name) {
  constexpr std::string_view kPartial = ".partial";
  if (name.ends_with(kPartial)) name.remove_suffix(kPartial.size());
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Status fail(std::string_view action, const fs::path& path, const std::error_code& error) {
  // Io whatever the number: NotFound speaks of inputs.
  return io_error(errno_status(action, path.string(), error.value()).message());
}

// Refuses to replace what is not a trace: the name of the first stranger, or nothing.
Result<std::string> stranger_in(const fs::path& directory) {
  std::error_code error;
  std::string found;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!is_trace_file(name) || !it->is_regular_file(error)) found = name;
  }
  if (error) return fail("list", directory, error);
  return found;
}

// Removes what an interrupted run has left at a name of ours; anything else stays.
Status remove_leftover(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  FATHOM_ASSIGN(const std::string stranger, stranger_in(path));
  if (!stranger.empty()) {
    return invalid_argument(str_cat(path.string(), " is in the way, and holds ", stranger,
                                    ", which is no file of a trace; move it"));
  }
  fs::remove_all(path, error);
  if (error) return fail("remove", path, error);
  return {};
}

}  // namespace

TraceFiles make_trace_files(const Recording& r,
                            const std::vector<Variation>& variations,
                            const SourceLinks& links,
                            const Peaks* peaks,
                            TraceDetail detail) {
  TraceFiles out;
  out.summary = summarise(r, peaks);
  CrossCheck check = cross_check(r, variations, links);
  for (std::string& failure : check.failures)
    out.failures.push_back(str_cat("cross_check.md: ", failure));
  out.files = {{"config.md", write_config_doc(r)},
               {"execution_graph.md", write_graph_doc(r, links)},
               {"ops.md", write_op_doc(r, variations, links)},
               {"kernels.md", write_kernel_doc(r, variations, links)},
               {"cross_check.md", std::move(check.text)},
               {"share.md", write_share_doc(r, out.summary)},
               {"ops.csv", write_ops_csv(op_rows(r))},
               {"summary.csv", write_summary_csv(out.summary, r)}};
  const std::string pictured = "decode";
  if (std::string svg = write_share_svg(r, out.summary, pictured); !svg.empty()) {
    out.files.push_back({"decode.svg", std::move(svg)});
  }
  if (std::string svg = write_layer_picture(r, pictured); !svg.empty()) {
    out.files.push_back({"layer.svg", std::move(svg)});
  }
  if (r.timed) out.files.push_back({"trace.json", write_chrome_trace(r, detail)});
  if (peaks != nullptr) out.files.push_back({"peaks.json", write_peaks(*peaks)});
  for (TraceFile& file : out.files) {
    if (!file.name.ends_with(".md")) continue;
    for (const std::string& cell : blank_cells(file.text))
      out.failures.push_back(str_cat(file.name, ": ", cell, ": no figure"));
    file.text = with_shared_links(file.text);
  }
  return out;
}

Status check_trace_directory(const std::string& path, Replace replace) {
  const fs::path directory(path);
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) return {};
  if (status.type() != fs::file_type::directory) {
    return invalid_argument(str_cat("--out-dir ", directory.string(), " is not a directory"));
  }
  if (fs::is_empty(directory, error) && !error) return {};
  if (replace == Replace::kNo) {
    return invalid_argument(str_cat("--out-dir ", directory.string(),
                                    " exists and is not empty; --force replaces a trace there"));
  }
  FATHOM_ASSIGN(const std::string stranger, stranger_in(directory));
  if (stranger.empty()) return {};
  return invalid_argument(str_cat("--out-dir ", directory.string(), " holds ", stranger,
                                  ", which is no file of a trace; --force replaces traces only"));
}

Status write_trace_directory(const std::vector<TraceFile>& files,
                             const std::string& directory,
                             Replace replace) {
  const fs::path target = fs::path(directory).lexically_normal();
  FATHOM_TRY(check_trace_directory(directory, replace));
  std::string name = target.string();
  while (name.size() > 1 && name.ends_with('/'))
    name.pop_back();
  const fs::path partial = name + ".partial";
  const fs::path replaced = name + ".replaced";
  FATHOM_TRY(remove_leftover(partial));
  FATHOM_TRY(remove_leftover(replaced));
  std::error_code error;
  fs::create_directories(partial, error);
  if (error) return fail("make", name, error);
  for (const TraceFile& file : files) {
    if (Status s = write_file((partial / file.name).string(), file.text); !s.ok()) {
      std::error_code ignored;
      fs::remove_all(partial, ignored);
      return s;
    }
  }
  const bool there = fs::exists(name, error);
  if (there) {
    fs::rename(name, replaced, error);
    if (error) return fail("replace", name, error);
  }
  fs::rename(partial, name, error);
  if (error) {
    std::error_code ignored;
    if (there) fs::rename(replaced, name, ignored);
    return fail("make", name, error);
  }
  if (there) fs::remove_all(replaced, error);
  return {};
}

}  // namespace fathom
