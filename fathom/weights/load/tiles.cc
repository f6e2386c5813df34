#include "fathom/weights/load/tiles.h"

namespace fathom {

std::vector<JobPart> tiled_parts(const WeightItem& item) {
  const int64_t groups = item.groups();
  std::vector<JobPart> parts;
  const auto add = [&](int64_t offset, int64_t bytes) {
    if (offset >= 0) parts.push_back({offset, bytes, groups * bytes});
  };
  add(item.values_offset, rows16_group_bytes(item.format, item.k));
  add(item.scales_offset, rows16_group_scales(item.format, item.k) * 4);
  add(item.global_offset, 4);
  return parts;
}

Rows16Matrix tiles_of(const WeightItem& item, const FillCall& call, int64_t group, int64_t rows) {
  const int64_t first = group - call.begin;
  Rows16Matrix out{.format = item.format, .n = rows, .k = item.k};
  size_t part = 0;
  out.tiles = call.parts[part++].data() + first * rows16_group_bytes(item.format, item.k);
  if (item.scales_offset >= 0) {
    out.scales = reinterpret_cast<float*>(call.parts[part++].data()) +
                 first * rows16_group_scales(item.format, item.k);
  }
  if (item.global_offset >= 0) {
    out.global = reinterpret_cast<float*>(call.parts[part].data()) + first;
  }
  return out;
}

}  // namespace fathom
