#include "fathom/weights/plan/weight_item.h"

#include "fathom/base/checked_math.h"
#include "fathom/formats/integer/qserve.h"
#include "fathom/formats/layout/tile_layout.h"

namespace fathom {
namespace {

std::byte* at(std::byte* base, int64_t offset) {
  return base == nullptr || offset < 0 ? nullptr : base + offset;
}

View matrix_view(std::byte* data, const WeightItem& item) {
  return item.stacked ? make_view(data, {item.e, item.n, item.k}, item.format, item.axes)
                      : make_view(data, {item.n, item.k}, item.format, item.axes);
}

// Scales of a row-major matrix as the format has them: one a row and block of columns, or one a
// block of both.
View block_scales_view(std::byte* data, const WeightItem& item) {
  const FormatInfo& info = format_info(item.format);
  const int64_t rows = ceil_div<int64_t>(item.n, info.block_n);
  const int64_t columns = ceil_div<int64_t>(item.k, info.block_k);
  return item.stacked ? make_view(data, {item.e, rows, columns}, info.scale)
                      : make_view(data, {rows, columns}, info.scale);
}

View scales_view(std::byte* data, const WeightItem& item) {
  if (item.in_tiles()) {
    return make_view(data, {item.groups(), rows16_group_scales(item.format, item.k)}, Format::kF32);
  }
  switch (item.format) {
    case Format::kW4a8Channel:
      return make_view(data, {item.n}, Format::kF16);
    case Format::kW4a8Group:
      return make_view(data, {item.k / kQserveGroup, item.n}, Format::kI8);
    case Format::kW4Fp8:
      return make_view(data, {item.e, item.n, item.k / 128}, Format::kF32);
    case Format::kFp8Channel:
    case Format::kInt8Channel:
      return item.stacked ? make_view(data, {item.e, item.n, 1}, Format::kF32)
                          : make_view(data, {item.n}, Format::kF32);
    default:
      return block_scales_view(data, item);
  }
}

LinearWeight linear_view(std::byte* base, const WeightItem& item) {
  LinearWeight out;
  out.w.layout = item.layout;
  out.w.values = matrix_view(at(base, item.values_offset), item);
  if (item.scales_offset >= 0) out.w.scales = scales_view(at(base, item.scales_offset), item);
  if (item.global_offset >= 0) {
    out.w.global = make_view(at(base, item.global_offset), {item.num_globals()}, Format::kF32);
  }
  if (item.input_scale_offset >= 0) {
    const int64_t count = item.num_input_scales();
    out.input_scale = make_view(at(base, item.input_scale_offset), {count}, Format::kF32);
    if (item.quantises_input) {
      const int64_t behind = item.input_scale_offset + count * element_bytes(Format::kF32);
      out.input_gs = make_view(at(base, behind), {count}, Format::kF32, item.stacked ? "E" : "1");
    }
  }
  if (item.format == Format::kW4a8Channel) {
    out.zeros = make_view(at(base, item.zeros_offset), {item.n}, Format::kF16);
  } else if (item.format == Format::kW4a8Group) {
    out.zeros =
        make_view(at(base, item.zeros_offset), {item.k / kQserveGroup, item.n}, Format::kI8);
    out.row_scales = make_view(at(base, item.row_scales_offset), {item.n}, Format::kF16);
  }
  return out;
}

}  // namespace

int64_t WeightItem::groups_per_matrix() const {
  return ceil_div(n, kTileRows);
}

int64_t WeightItem::groups() const {
  return e * groups_per_matrix();
}

int64_t WeightItem::value_bytes() const {
  return in_tiles() ? groups() * rows16_group_bytes(format, k) : e * value_bytes_for(format, n, k);
}

int64_t WeightItem::num_scales() const {
  if (!is_linear()) return 0;
  return in_tiles() ? groups() * rows16_group_scales(format, k) : e * scale_count_for(format, n, k);
}

Format WeightItem::scale_type() const {
  return in_tiles() ? Format::kF32 : format_info(format).scale;
}

int64_t WeightItem::num_globals() const {
  if (!is_linear()) return 0;
  if (in_tiles()) return rows16_has_global(format) ? groups() : 0;
  return format_info(format).has_global ? e : 0;
}

int64_t WeightItem::num_input_scales() const {
  if (format == Format::kW4Fp8) return 1;
  return is_linear() && format_info(format).has_global ? e : 0;
}

void place_item(WeightItem& item, int64_t begin, int64_t alignment) {
  int64_t end = begin;
  const auto take = [&](int64_t count, Format type) -> int64_t {
    if (count == 0) return -1;
    const int64_t offset = end;
    end += align_up(count * element_bytes(type), alignment);
    return offset;
  };
  const FormatInfo& info = format_info(item.format);
  item.values_offset = take(item.value_bytes(), Format::kU8);
  if (item.num_scales() > 0) {
    item.scales_offset = take(item.num_scales(), item.scale_type());
    if (info.zero != Format::kNone) item.zeros_offset = take(item.num_scales(), info.zero);
    if (info.row_scale != Format::kNone) item.row_scales_offset = take(item.n, info.row_scale);
  }
  item.global_offset = take(item.num_globals(), Format::kF32);
  item.input_scale_offset = take(item.num_input_floats(), Format::kF32);
  item.bytes = end - begin;
}

void bind_item(const WeightItem& item, std::byte* base, HostReads host) {
  const bool on_device = host == HostReads::kNo && base != nullptr;
  if (item.is_linear()) {
    LinearWeight& w = *item.linear_out;
    w = linear_view(base, item);
    for (View* v : {&w.w.values, &w.w.scales, &w.w.global, &w.input_scale, &w.input_gs, &w.zeros,
                    &w.row_scales}) {
      v->on_device = on_device && v->present();
    }
    return;
  }
  View& v = *item.view_out;
  std::byte* data = at(base, item.values_offset);
  v = item.kind == WeightItem::Kind::kVector
          ? make_view(data, {item.k}, item.format, item.axes)
          : make_view(data, {item.n, item.k}, item.format, item.axes);
  v.on_device = on_device;
}

}  // namespace fathom
