// The directory of a trace: every document of a recording, all of them or none.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fathom/report/docs/source_links.h"
#include "fathom/report/files/chrome_trace.h"
#include "fathom/report/files/summary.h"
#include "fathom/report/record/dry_trace.h"
#include "fathom/report/recording.h"

namespace fathom {

struct TraceFile {
  std::string name;
  std::string text;
};

struct TraceFiles {
  std::vector<TraceFile> files;
  /// What the files lack: a blank cell of a table, a kernel without op or reason, an op without
  /// variant; each with its file.
  std::vector<std::string> failures;
  std::vector<SummaryRow> summary;
};

/// config.md, execution_graph.md, ops.md, kernels.md, cross_check.md, share.md, decode.svg,
/// layer.svg, ops.csv, summary.csv and, of a timed recording, trace.json and the ceilings that its
/// shares are of, peaks.json. `peaks` may be null.
TraceFiles make_trace_files(const Recording& recording,
                            const std::vector<Variation>& variations,
                            const SourceLinks& links,
                            const Peaks* peaks,
                            TraceDetail detail);

/// Writes them into `directory`, which appears with all files or not at all: they are written
/// beside it first. With `replace` a directory that holds a trace already is replaced; otherwise it
/// must not exist, or be empty. Errors: InvalidArgument for a directory that is there, or that
/// holds anything else than a trace; Io.
enum class Replace : uint8_t { kNo, kYes };
Status write_trace_directory(const std::vector<TraceFile>& files,
                             const std::string& directory,
                             Replace replace);

/// What write_trace_directory checks first, for callers with long work in between. With kYes a
/// directory that holds a trace is replaced; otherwise it must not exist, or be empty. Errors:
/// InvalidArgument for a directory that is there, or that holds anything else than a trace.
Status check_trace_directory(const std::string& directory, Replace replace);

}  // namespace fathom
