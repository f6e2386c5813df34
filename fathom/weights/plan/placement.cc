#include "fathom/weights/plan/placement.h"

#include <algorithm>

#include "fathom/formats/layout/pair_layout.h"
#include "fathom/formats/layout/tile_layout.h"

namespace fathom {

Format Placement::memory_format(Format format) const {
  if (format == Format::kFp8Tensor) return Format::kFp8Channel;
  return format == Format::kMxfp4 && !is_host() ? Format::kNvfp4 : format;
}

WeightLayout Placement::layout(Format format, int64_t k) const {
  if (is_host()) return has_rows16(format) ? WeightLayout::kRows16 : WeightLayout::kRowMajor;
  return format == Format::kNvfp4 && k % kPairedCodes == 0 ? WeightLayout::kPairs
                                                           : WeightLayout::kRowMajor;
}

int64_t Placement::row_step(Format format) const {
  constexpr int64_t kPackedRows = 32;  // of QServe, whose rows are packed together
  if (format == Format::kW4a8Channel || format == Format::kW4a8Group) return kPackedRows;
  if (!has_rows16(format)) return 1;
  return is_host() ? kTileRows : std::max(format_info(format).block_n, 1);
}

}  // namespace fathom
