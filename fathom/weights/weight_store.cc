#include "fathom/weights/weight_store.h"

#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/formats/pair_layout.h"
#include "fathom/formats/tile_layout.h"

namespace fathom {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kGpuAlignment = 256;

bool is_vector_format(Format format) {
  return format == Format::kBf16 || format == Format::kF32;
}

// What a weight that is stored in `format` has in memory: one scale for all rows is one for each.
Format memory_format(Format format) {
  return format == Format::kFp8Tensor ? Format::kFp8Channel : format;
}

bool is_qserve(Format format) {
  return format == Format::kW4a8Channel || format == Format::kW4a8Group;
}

bool has_channel_scales(Format format) {
  return format == Format::kFp8Channel || format == Format::kInt8Channel;
}

bool is_linear_format(Format format, bool stacked) {
  if (format == Format::kF32 || has_rows16(format) || has_channel_scales(format)) return true;
  return stacked ? format == Format::kW4Fp8 : is_qserve(format);
}

const char* linear_formats(bool stacked) {
  return stacked ? "bf16, f32, fp8_block, fp8_block_ue8m0, fp8_channel, fp8_tensor, int8_channel, "
                   "w4_fp8 or nvfp4"
                 : "bf16, f32, fp8_block, fp8_block_ue8m0, fp8_channel, fp8_tensor, int8_channel, "
                   "w4a8_channel, w4a8_group or nvfp4";
}

// Columns that a matrix needs a multiple of, beyond what its kernel's limits say.
int64_t column_step(Format format) {
  if (format == Format::kW4a8Channel) return 32;
  return format == Format::kW4a8Group || format == Format::kW4Fp8 ? 128 : 1;
}

// "experts.{}.up_proj" and 7 give "experts.7.up_proj".
std::string with_number(const std::string& pattern, int64_t number) {
  const size_t at = pattern.find("{}");
  FATHOM_CHECK(at != std::string::npos, pattern);
  return str_cat(pattern.substr(0, at), number, pattern.substr(at + 2));
}

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

View scales_view(std::byte* base, const WeightItem& item) {
  std::byte* data = at(base, item.scales_offset);
  if (item.on_gpu && has_rows16(item.format)) return block_scales_view(data, item);
  switch (item.format) {
    case Format::kW4a8Channel:
      return make_view(data, {item.n}, Format::kF16);
    case Format::kW4a8Group:
      return make_view(data, {item.k / 128, item.n}, Format::kI8);
    case Format::kW4Fp8:
      return make_view(data, {item.e, item.n, item.k / 128}, Format::kF32);
    case Format::kFp8Channel:
    case Format::kInt8Channel:
      return item.stacked ? make_view(data, {item.e, item.n, 1}, Format::kF32)
                          : make_view(data, {item.n}, Format::kF32);
    default:
      return make_view(data, {item.groups(), rows16_group_scales(item.format, item.k)},
                       Format::kF32);
  }
}

LinearWeight linear_view(std::byte* base, const WeightItem& item) {
  LinearWeight out;
  out.w.layout = item.layout();
  out.w.values = matrix_view(at(base, item.values_offset), item);
  if (item.scales_offset >= 0) out.w.scales = scales_view(base, item);
  if (item.global_offset >= 0) {
    const int64_t count = item.layout() == WeightLayout::kRows16 ? item.groups() : item.e;
    out.w.global = make_view(at(base, item.global_offset), {count}, Format::kF32);
  }
  if (item.input_scale_offset >= 0) {
    out.input_scale =
        make_view(at(base, item.input_scale_offset), {item.num_input_scales()}, Format::kF32);
  }
  if (item.format == Format::kW4a8Channel) {
    out.zeros = make_view(at(base, item.zeros_offset), {item.n}, Format::kF16);
  } else if (item.format == Format::kW4a8Group) {
    out.zeros = make_view(at(base, item.zeros_offset), {item.k / 128, item.n}, Format::kI8);
    out.row_scales = make_view(at(base, item.row_scales_offset), {item.n}, Format::kF16);
  }
  if (item.on_gpu && base != nullptr) {
    for (View* v : {&out.w.values, &out.w.scales, &out.w.global, &out.input_scale, &out.zeros,
                    &out.row_scales}) {
      v->on_device = v->present();
    }
  }
  return out;
}

}  // namespace

int64_t RowsWeight::rows() const {
  int64_t n = 0;
  for (int i = 0; i < num_parts; ++i)
    n += parts[i].w.rows();
  return n;
}

int64_t WeightItem::groups_per_matrix() const {
  return ceil_div(n, kTileRows);
}

int64_t WeightItem::groups() const {
  return e * groups_per_matrix();
}

WeightLayout WeightItem::layout() const {
  if (on_gpu) {
    const bool words = format == Format::kNvfp4 && kind == Kind::kMatrix && k % kPairedCodes == 0;
    return words ? WeightLayout::kPairs : WeightLayout::kRowMajor;
  }
  return has_rows16(format) ? WeightLayout::kRows16 : WeightLayout::kRowMajor;
}

int64_t WeightItem::num_input_scales() const {
  return format == Format::kNvfp4 ? e : 1;
}

WeightPlan::WeightPlan(SymbolTable symbols, FormatSource formats, TensorPlaces places)
    : symbols_(std::move(symbols)), formats_(std::move(formats)), places_(std::move(places)) {}

void WeightPlan::place_on_gpu(SameGlobalScale same_global_scale) {
  FATHOM_CHECK(items_.empty(), "weights are declared already");
  on_gpu_ = true;
  same_global_scale_ = std::move(same_global_scale);
}

// Rows that matrices need a multiple of to lie one below the other.
int64_t WeightPlan::row_step(Format format) const {
  if (is_qserve(format)) return 32;
  if (!has_rows16(format)) return 1;
  return on_gpu_ ? std::max(format_info(format).block_n, 1) : kTileRows;
}

Result<bool> WeightPlan::lie_in_one(const WeightSpec& a, const WeightSpec& b) const {
  const Format format = memory_format(a.format);
  if (format != memory_format(b.format) || a.dims[0] % row_step(format) != 0) return false;
  if (!on_gpu_ || format != Format::kNvfp4) return true;
  return same_global_scale_(a, b);
}

std::string WeightPlan::place_of(const WeightSpec& spec) const {
  return places_ ? places_(spec.name) : str_cat("tensor ", spec.name);
}

Status WeightPlan::wrong_format(const WeightSpec& spec, std::string_view expected) const {
  return unsupported(
      str_cat(place_of(spec), " is stored as ", format_name(spec.format), ", expected ", expected));
}

Result<WeightSpec> WeightPlan::spec(std::string name,
                                    const char* axes,
                                    WeightRole role,
                                    size_t rank) const {
  WeightSpec out;
  out.name = std::move(name);
  out.axes = axes;
  out.role = role;
  out.draft = draft_;
  FATHOM_ASSIGN(out.dims, eval_axes(axes, symbols_));
  FATHOM_CHECK(out.dims.size() == rank, str_cat(out.name, ": ", axes));
  FATHOM_ASSIGN(out.format, formats_(out));
  return out;
}

int64_t WeightPlan::take(int64_t bytes) {
  const int64_t begin = total_bytes_;
  total_bytes_ += align_up(bytes, on_gpu_ ? kGpuAlignment : kAlignment);
  return begin;
}

void WeightPlan::place_row_major_scales(WeightItem& item) {
  const int64_t groups = item.k / 128;
  if (has_channel_scales(item.format)) {
    item.scales_offset = take(item.e * item.n * 4);
  } else if (item.format == Format::kW4Fp8) {
    item.scales_offset = take(item.e * item.n * groups * 4);
    item.input_scale_offset = take(item.num_input_scales() * 4);
  } else if (item.format == Format::kW4a8Channel) {
    item.scales_offset = take(item.n * 2);
    item.zeros_offset = take(item.n * 2);
  } else if (item.format == Format::kW4a8Group) {
    item.scales_offset = take(item.n * groups);
    item.zeros_offset = take(item.n * groups);
    item.row_scales_offset = take(item.n * 2);
  }
}

// Scales in the format's own type, and one global scale a matrix.
void WeightPlan::place_block_scales(WeightItem& item) {
  const FormatInfo& info = format_info(item.format);
  if (info.scale == Format::kNone) return;
  item.scales_offset =
      take(item.e * scale_count_for(item.format, item.n, item.k) * element_bytes(info.scale));
  if (!info.has_global) return;
  item.global_offset = take(item.e * 4);
  item.input_scale_offset = take(item.e * 4);
}

// Gives the item its place: values, then scales, then global and activation scales.
void WeightPlan::place(WeightItem& item) {
  const int64_t begin = total_bytes_;
  const bool is_linear =
      item.kind != WeightItem::Kind::kVector && item.kind != WeightItem::Kind::kTable;
  if (is_linear && item.layout() == WeightLayout::kRows16) {
    item.values_offset = take(item.groups() * rows16_group_bytes(item.format, item.k));
    const int64_t scales = item.groups() * rows16_group_scales(item.format, item.k);
    if (scales > 0) item.scales_offset = take(scales * 4);
    if (item.format == Format::kNvfp4) {
      item.global_offset = take(item.groups() * 4);
      item.input_scale_offset = take(item.e * 4);
    }
  } else {
    item.values_offset = take(item.e * value_bytes_for(item.format, item.n, item.k));
    if (is_linear && has_rows16(item.format)) {
      place_block_scales(item);
    } else {
      place_row_major_scales(item);
    }
  }
  item.bytes = total_bytes_ - begin;
}

Status WeightPlan::vector(std::string name, const char* axes, WeightRole role, View* out) {
  FATHOM_ASSIGN(WeightSpec source, spec(std::move(name), axes, role, 1));
  if (!is_vector_format(source.format)) return wrong_format(source, "bf16 or f32");
  WeightItem item;
  item.kind = WeightItem::Kind::kVector;
  item.role = role;
  item.format = role == WeightRole::kRouterBias ? Format::kF32 : source.format;
  item.draft = draft_;
  item.on_gpu = on_gpu_;
  item.k = source.dims[0];
  item.axes = axes;
  item.view_out = out;
  item.sources.push_back(std::move(source));
  place(item);
  items_.push_back(std::move(item));
  return {};
}

Status WeightPlan::table(std::string name, const char* axes, WeightRole role, View* out) {
  FATHOM_ASSIGN(WeightSpec source, spec(std::move(name), axes, role, 2));
  if (!is_vector_format(source.format)) return wrong_format(source, "bf16 or f32");
  WeightItem item;
  item.kind = WeightItem::Kind::kTable;
  item.role = role;
  item.format = source.format;
  item.draft = draft_;
  item.on_gpu = on_gpu_;
  item.n = source.dims[0];
  item.k = source.dims[1];
  item.axes = axes;
  item.view_out = out;
  item.sources.push_back(std::move(source));
  place(item);
  items_.push_back(std::move(item));
  return {};
}

// The sources are there; checks that they can lie in one weight, and places it.
Status WeightPlan::add_matrix(WeightItem item) {
  item.kind = WeightItem::Kind::kMatrix;
  item.draft = draft_;
  item.on_gpu = on_gpu_;
  const WeightSpec& first = item.sources.front();
  item.format = memory_format(first.format);
  item.k = first.dims[1];
  const int64_t step = row_step(item.format);
  int64_t rows = 0;
  // In tiles the matrices of a stack follow each other; row-major each has its own scale rows.
  const size_t parts =
      on_gpu_ ? item.sources.size() / static_cast<size_t>(item.e) : item.sources.size();
  for (size_t i = 0; i < item.sources.size(); ++i) {
    const WeightSpec& s = item.sources[i];
    const bool followed = on_gpu_ ? (i + 1) % parts != 0 : i + 1 < parts || item.stacked;
    if (!is_linear_format(memory_format(s.format), item.stacked)) {
      return wrong_format(s, linear_formats(item.stacked));
    }
    if (memory_format(s.format) != item.format) {
      return unsupported(str_cat(place_of(s), " is stored as ", format_name(s.format), ", but ",
                                 first.name, " as ", format_name(item.format),
                                 "; the experts of a layer must have one format"));
    }
    if ((followed || is_qserve(item.format)) && s.dims[0] % step != 0) {
      return unsupported(str_cat(place_of(s), " has ", s.dims[0], " rows; ",
                                 is_qserve(item.format) ? "packed" : "stacked",
                                 " weights need a multiple of ", step));
    }
    if (const int64_t columns = column_step(item.format); item.k % columns != 0) {
      return unsupported(str_cat(place_of(s), " has ", item.k, " columns; ",
                                 format_name(item.format), " needs a multiple of ", columns));
    }
    rows += s.dims[0];
  }
  item.n = rows / item.e;
  place(item);
  items_.push_back(std::move(item));
  return {};
}

Status WeightPlan::matrix(std::string name, const char* axes, WeightRole role, LinearWeight* out) {
  WeightItem item;
  item.role = role;
  item.axes = axes;
  item.linear_out = out;
  FATHOM_ASSIGN(WeightSpec source, spec(std::move(name), axes, role, 2));
  item.sources.push_back(std::move(source));
  return add_matrix(std::move(item));
}

Status WeightPlan::rows(const RowPart& first,
                        const RowPart& second,
                        const char* fused_axes,
                        WeightRole role,
                        RowsWeight* out) {
  FATHOM_ASSIGN(WeightSpec a, spec(first.name, first.axes, role, 2));
  FATHOM_ASSIGN(WeightSpec b, spec(second.name, second.axes, role, 2));
  FATHOM_CHECK(a.dims[1] == b.dims[1], str_cat(a.name, " and ", b.name, " differ in columns"));
  FATHOM_ASSIGN(const bool fits, lie_in_one(a, b));
  if (!fits) {
    out->num_parts = 2;
    FATHOM_TRY(matrix(first.name, first.axes, role, &out->parts[0]));
    return matrix(second.name, second.axes, role, &out->parts[1]);
  }
  out->num_parts = 1;
  WeightItem item;
  item.role = role;
  item.axes = fused_axes;
  item.linear_out = &out->parts[0];
  item.sources.push_back(std::move(a));
  item.sources.push_back(std::move(b));
  return add_matrix(std::move(item));
}

Status WeightPlan::stack(std::initializer_list<RowPart> parts,
                         int64_t count,
                         const char* axes,
                         WeightRole role,
                         LinearWeight* out) {
  WeightItem item;
  item.role = role;
  item.axes = axes;
  item.stacked = true;
  item.e = count;
  item.linear_out = out;
  item.sources.reserve(static_cast<size_t>(count) * parts.size());
  for (int64_t expert = 0; expert < count; ++expert) {
    for (const RowPart& part : parts) {
      FATHOM_ASSIGN(WeightSpec source, spec(with_number(part.name, expert), part.axes, role, 2));
      item.sources.push_back(std::move(source));
    }
  }
  return add_matrix(std::move(item));
}

Status WeightPlan::stack_rows(const RowPart& first,
                              const RowPart& second,
                              int64_t count,
                              const char* axes,
                              const char* part_axes,
                              WeightRole role,
                              RowsWeight* out) {
  bool fits = true;
  for (int64_t expert = 0; on_gpu_ && fits && expert < count; ++expert) {
    FATHOM_ASSIGN(const WeightSpec a, spec(with_number(first.name, expert), first.axes, role, 2));
    FATHOM_ASSIGN(const WeightSpec b, spec(with_number(second.name, expert), second.axes, role, 2));
    FATHOM_ASSIGN(fits, lie_in_one(a, b));
  }
  out->num_parts = fits ? 1 : 2;
  if (fits) return stack({first, second}, count, axes, role, &out->parts[0]);
  FATHOM_TRY(stack({first}, count, part_axes, role, &out->parts[0]));
  return stack({second}, count, part_axes, role, &out->parts[1]);
}

Status WeightPlan::absorbed(
    int64_t num_heads, int64_t nope_dim, int64_t v_dim, LinearWeight* w_kc, LinearWeight* w_vc) {
  FATHOM_CHECK(!items_.empty() && items_.back().kind == WeightItem::Kind::kMatrix);
  const size_t source = items_.size() - 1;
  const WeightItem kv_b = items_.back();
  FATHOM_CHECK(kv_b.n == num_heads * (nope_dim + v_dim), kv_b.sources[0].name);
  if (kv_b.k % kTileRows != 0 || v_dim % kTileRows != 0) {
    return unsupported(str_cat("the absorbed form of ", kv_b.sources[0].name,
                               " needs kv_lora_rank (", kv_b.k, ") and v_head_dim (", v_dim,
                               ") to be multiples of ", kTileRows));
  }
  WeightItem item;
  item.role = kv_b.role;
  item.format = kv_b.format == Format::kF32 ? Format::kF32 : Format::kBf16;
  item.draft = draft_;
  item.on_gpu = on_gpu_;
  item.stacked = true;
  item.e = num_heads;
  item.derived_from = source;
  item.head_rows_k = nope_dim;
  item.head_rows_v = v_dim;

  WeightItem keys = item;
  keys.kind = WeightItem::Kind::kAbsorbedK;
  keys.n = kv_b.k;
  keys.k = nope_dim;
  keys.axes = "Nh,Lkv,Dn";
  keys.linear_out = w_kc;
  place(keys);
  items_.push_back(std::move(keys));

  WeightItem values = item;
  values.kind = WeightItem::Kind::kAbsorbedV;
  values.n = v_dim;
  values.k = kv_b.k;
  values.axes = "Nh,Dv,Lkv";
  values.linear_out = w_vc;
  place(values);
  items_.push_back(std::move(values));
  return {};
}

int64_t WeightPlan::parameters(bool draft) const {
  int64_t total = 0;
  for (const WeightItem& item : items_) {
    if (item.draft != draft) continue;
    for (const WeightSpec& s : item.sources)
      total += s.numel();
  }
  return total;
}

std::vector<WeightSummary> WeightPlan::summary() const {
  std::vector<WeightSummary> lines;
  for (const WeightItem& item : items_) {
    WeightSummary* line = nullptr;
    for (WeightSummary& l : lines) {
      if (l.role == item.role && l.format == item.format && l.draft == item.draft) line = &l;
    }
    if (line == nullptr) {
      line = &lines.emplace_back(WeightSummary{item.role, item.format, item.draft, 0, 0, 0});
    }
    line->tensors += static_cast<int64_t>(item.sources.size());
    for (const WeightSpec& s : item.sources)
      line->parameters += s.numel();
    line->bytes += item.bytes;
  }
  return lines;
}

void WeightPlan::bind(std::byte* base) const {
  for (const WeightItem& item : items_) {
    std::byte* values = at(base, item.values_offset);
    switch (item.kind) {
      case WeightItem::Kind::kVector:
        *item.view_out = make_view(values, {item.k}, item.format, item.axes);
        item.view_out->on_device = on_gpu_ && base != nullptr;
        break;
      case WeightItem::Kind::kTable:
        *item.view_out = make_view(values, {item.n, item.k}, item.format, item.axes);
        item.view_out->on_device = on_gpu_ && base != nullptr;
        break;
      case WeightItem::Kind::kMatrix:
      case WeightItem::Kind::kAbsorbedK:
      case WeightItem::Kind::kAbsorbedV:
        *item.linear_out = linear_view(base, item);
        break;
    }
  }
}

Result<WeightStore> WeightStore::allocate(const WeightPlan& plan) {
  WeightStore store;
  const DeviceKind kind = plan.on_gpu() ? DeviceKind::kCuda : DeviceKind::kCpu;
  FATHOM_ASSIGN(store.memory_, Buffer::allocate(kind, plan.total_bytes(), "weights"));
  store.bytes_ = plan.total_bytes();
  store.summary_ = plan.summary();
  plan.bind(store.memory_.data());
  return store;
}

WeightStore WeightStore::dry(const WeightPlan& plan) {
  WeightStore store;
  store.bytes_ = plan.total_bytes();
  store.summary_ = plan.summary();
  plan.bind(nullptr);
  return store;
}

}  // namespace fathom
