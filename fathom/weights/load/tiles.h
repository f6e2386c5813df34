// Items in tiles (kRows16), filled group by group.
#pragma once

#include <vector>

#include "fathom/formats/layout/tile_layout.h"
#include "fathom/weights/load/fill.h"

namespace fathom {

/// The parts of a job whose unit is a group of 16 rows: the tile stream, then scales and global
/// scales where the item has them.
std::vector<JobPart> tiled_parts(const WeightItem& item);

/// Groups from `group` on, as `rows` rows, where a call of such a job has them.
Rows16Matrix tiles_of(const WeightItem& item, const FillCall& call, int64_t group, int64_t rows);

}  // namespace fathom
