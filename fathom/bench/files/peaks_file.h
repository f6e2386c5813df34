// The ceilings of a machine as a file: what a benchmark leaves beside its rows, and what
// `roofline --peaks FILE` takes for a machine that has no table here.
#pragma once

#include <string>
#include <string_view>

#include "fathom/bench/machine/peaks.h"
#include "fathom/text/json_writer.h"

namespace fathom {

inline constexpr std::string_view kPeaksSchema = "fathom.peaks/1";

/// JSON: schema, device, source, a number for each rate (0: no such unit), the instruction names.
std::string write_peaks(const Peaks& peaks);

/// The same as one value of a document.
void append_peaks(JsonWriter& json, const Peaks& peaks);

/// Reads what write_peaks wrote. `path` names the text in messages. Errors: Corrupt for another
/// schema, a rate that is missing, negative or no number, and a machine that can do nothing.
Result<Peaks> read_peaks(std::string_view text, std::string_view path);

}  // namespace fathom
