#include <cmath>
#include <limits>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/argmax/argmax.h"
#include "fathom/kernels/sample/argmax/argmax_rows.h"

namespace fathom {

RowPeak find_peak(const float* row, int64_t count) {
  RowPeak peak;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(row[i]) || row[i] == std::numeric_limits<float>::infinity()) {
      peak.unusable = true;
    }
    if (row[i] > peak.max) {
      peak.max = row[i];
      peak.index = static_cast<int32_t>(i);
    }
  }
  return peak;
}

namespace {

/// Pieces of a row that threads take: one where rows are enough for all of them.
int64_t pieces_per_row(int64_t num_rows, int num_threads) {
  return num_rows >= num_threads || num_rows == 0 ? 1 : (num_threads + num_rows - 1) / num_rows;
}

void write_row(
    const RowPeak* pieces, int64_t num_pieces, int64_t piece, const Argmax::Args& a, int64_t t) {
  // Pieces come in the order of the row, so the first of equal maxima has the lowest index.
  RowPeak best = pieces[0];
  for (int64_t p = 1; p < num_pieces; ++p) {
    best.unusable = best.unusable || pieces[p].unusable;
    if (pieces[p].max > best.max) {
      best.max = pieces[p].max;
      best.index = static_cast<int32_t>(p * piece) + pieces[p].index;
    }
  }
  const bool nothing = best.max == -std::numeric_limits<float>::infinity();
  a.ids.as<int32_t>()[t] = best.index;
  a.bad.as<int32_t>()[t] = best.unusable || nothing ? 1 : 0;
}

template <RowPeak (*kFind)(const float*, int64_t)>
Status argmax(Exec& ex, const Argmax::Args& a) {
  const int64_t num_rows = a.logits.dim(0);
  const int64_t V = a.logits.dim(1);
  const int64_t num_pieces = pieces_per_row(num_rows, ex.num_threads);
  const int64_t piece = (V + num_pieces - 1) / num_pieces;
  auto* peaks = static_cast<RowPeak*>(ex.workspace);
  for_rows(ex, num_rows * num_pieces, piece * 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = std::min(V, i % num_pieces * piece);
      const int64_t count = std::min(piece, V - first);
      peaks[i] = kFind(a.logits.row<const float>(i / num_pieces) + first, count);
    }
  });
  for (int64_t t = 0; t < num_rows; ++t) {
    write_row(peaks + t * num_pieces, num_pieces, piece, a, t);
  }
  return {};
}

}  // namespace

int64_t Argmax::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.logits.dim(0);
  return rows * pieces_per_row(rows, num_threads) * static_cast<int64_t>(sizeof(RowPeak));
}

constinit const VariantTable<Argmax> argmax_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant, argmax<avx512::find_peak>},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, argmax<find_peak>},
};

}  // namespace fathom
