// share.md and shares.svg: where the bytes (or the time) of a phase go, op by op.
#pragma once

#include <string>
#include <vector>

#include "fathom/report/files/summary.h"
#include "fathom/report/recording.h"

namespace fathom {

/// Bars of text, an op a line, for each phase: of time where the recording was timed, of bytes
/// otherwise.
std::string write_share_doc(const Recording& recording, const std::vector<SummaryRow>& rows);

/// The bars of one phase alone, as they stand in share.md.
std::string share_bars(const std::vector<SummaryRow>& rows, const std::string& phase);

/// One phase as a picture: a bar an op, cut into weights, cache and activations, which differ in
/// shade and in hatching. Empty if the recording has no such phase.
std::string write_share_svg(const Recording& recording,
                            const std::vector<SummaryRow>& rows,
                            const std::string& phase);

}  // namespace fathom
