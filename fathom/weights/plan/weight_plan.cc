#include "fathom/weights/plan/weight_plan.h"

#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/weights/plan/shard.h"

namespace fathom {
namespace {

bool is_vector_format(Format format) {
  return format == Format::kBf16 || format == Format::kF32;
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
                   "w4_fp8, nvfp4, mxfp4 or mxfp8"
                 : "bf16, f32, fp8_block, fp8_block_ue8m0, fp8_channel, fp8_tensor, int8_channel, "
                   "w4a8_channel, w4a8_group, nvfp4, mxfp4 or "
                   "mxfp8";
}

// Columns that a matrix needs a multiple of, beyond what its kernel's limits say.
int64_t column_step(Format format) {
  return is_qserve(format) || format == Format::kW4Fp8 ? cut_step(format, 1) : 1;
}

// "experts.{}.up_proj" and 7 give "experts.7.up_proj".
std::string with_number(const std::string& pattern, int64_t number) {
  const size_t at = pattern.find("{}");
  FATHOM_CHECK(at != std::string::npos, pattern);
  return str_cat(pattern.substr(0, at), number, pattern.substr(at + 2));
}

}  // namespace

int64_t RowsWeight::rows() const {
  int64_t n = 0;
  for (int i = 0; i < num_parts; ++i)
    n += parts[i].w.rows();
  return n;
}

WeightPlan::WeightPlan(SymbolTable symbols, TensorSource tensors, Placement placement)
    : symbols_(std::move(symbols)), tensors_(std::move(tensors)), placement_(placement) {
  const Shard& shard = placement_.shard;
  FATHOM_CHECK(shard.count >= 1 && shard.rank >= 0 && shard.rank < shard.count,
               str_cat("rank ", shard.rank, " of ", shard.count));
}

WeightPlan::WeightPlan(SymbolTable symbols, FormatSource formats, Placement placement)
    : WeightPlan(std::move(symbols), TensorSource{.format = std::move(formats)}, placement) {}

bool WeightPlan::is_stored(std::string_view tensor) const {
  return tensors_.stored && tensors_.stored(tensor);
}

Result<bool> WeightPlan::lie_in_one(const WeightSpec& a, const WeightSpec& b) const {
  const Format format = placement_.memory_format(a.format);
  if (format != placement_.memory_format(b.format)) return false;
  if (a.held(0) % placement_.row_step(format) != 0) return false;
  const bool one_scale = format_info(format).has_global && !placement_.keeps_global_scales();
  if (!one_scale || !tensors_.same_global_scale) return true;
  return tensors_.same_global_scale(a, b);
}

std::string WeightPlan::place_of(const std::string& tensor) const {
  return tensors_.place ? tensors_.place(tensor) : str_cat("tensor ", tensor);
}

Status WeightPlan::wrong_format(const WeightSpec& spec, std::string_view expected) const {
  return unsupported(str_cat(place_of(spec.name), " is stored as ", format_name(spec.format),
                             ", expected ", expected));
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
  FATHOM_ASSIGN(out.format, tensors_.format(out));
  if (placement_.shard.whole()) return out;
  FATHOM_TRY(cut_tensor(symbols_, placement_.shard, place_of(out.name), out));
  return out;
}

// The sources are there; the sizes of the item too.
void WeightPlan::add(WeightItem item) {
  item.draft = draft_;
  if (item.is_linear()) item.layout = placement_.layout(item.format, item.k);
  // A GPU has MXFP4 in the form of NVFP4: what is stored decides, and copies have no sources.
  item.quantises_input = nvfp4_inputs_ == Nvfp4Inputs::kQuantised && !item.sources.empty();
  for (const WeightSpec& source : item.sources) {
    item.shared |= source.part.axis >= 0;
    item.quantises_input &= source.format == Format::kNvfp4;
  }
  place_item(item, total_bytes_, placement_.alignment());
  total_bytes_ += item.bytes;
  items_.push_back(std::move(item));
}

Status WeightPlan::add_dense(
    WeightItem::Kind kind, std::string name, const char* axes, WeightRole role, View* out) {
  const bool vector = kind == WeightItem::Kind::kVector;
  FATHOM_ASSIGN(WeightSpec source, spec(std::move(name), axes, role, vector ? 1 : 2));
  if (!is_vector_format(source.format)) return wrong_format(source, "bf16 or f32");
  WeightItem item;
  item.kind = kind;
  item.role = role;
  item.format = is_kept_in_f32(role) ? Format::kF32 : source.format;
  item.n = vector ? 1 : source.held(0);
  item.k = source.held(vector ? 0 : 1);
  item.axes = axes;
  item.view_out = out;
  item.sources.push_back(std::move(source));
  add(std::move(item));
  return {};
}

Status WeightPlan::vector(std::string name, const char* axes, WeightRole role, View* out) {
  return add_dense(WeightItem::Kind::kVector, std::move(name), axes, role, out);
}

Status WeightPlan::table(std::string name, const char* axes, WeightRole role, View* out) {
  return add_dense(WeightItem::Kind::kTable, std::move(name), axes, role, out);
}

Status WeightPlan::index_table(std::string name, const char* axes, int64_t limit, View* out) {
  FATHOM_ASSIGN(WeightSpec source, spec(std::move(name), axes, WeightRole::kHashTable, 2));
  // One that is missing is named with all the others that are.
  if (tensors_.stored && !is_stored(source.name)) source.format = Format::kI64;
  if (source.format != Format::kI32 && source.format != Format::kI64) {
    return wrong_format(source, "i32 or i64");
  }
  WeightItem item;
  item.kind = WeightItem::Kind::kTable;
  item.role = source.role;
  item.format = source.format;
  item.n = source.held(0);
  item.k = source.held(1);
  item.index_limit = limit;
  item.axes = axes;
  item.view_out = out;
  item.sources.push_back(std::move(source));
  add(std::move(item));
  return {};
}

// Whether a source can lie in its item, among the others.
Status WeightPlan::check_source(const WeightItem& item, size_t index) const {
  const WeightSpec& s = item.sources[index];
  const WeightSpec& first = item.sources.front();
  if (!is_linear_format(placement_.memory_format(s.format), item.stacked)) {
    return wrong_format(s, linear_formats(item.stacked));
  }
  if (placement_.memory_format(s.format) != item.format) {
    return unsupported(str_cat(place_of(s.name), " is stored as ", format_name(s.format), ", but ",
                               first.name, " as ", format_name(item.format),
                               "; the experts of a layer must have one format"));
  }
  // In tiles the matrices of a stack follow each other; row-major each has its own scale rows.
  const size_t parts = item.sources.size() / static_cast<size_t>(item.e);
  const bool tiles = placement_.layout(item.format, item.k) == WeightLayout::kRows16;
  const bool followed = (index + 1) % parts != 0 || (tiles && item.stacked);
  const int64_t step = placement_.row_step(item.format);
  if ((followed || is_qserve(item.format)) && s.held(0) % step != 0) {
    return unsupported(str_cat(place_of(s.name), " has ", s.held(0), " rows; ",
                               is_qserve(item.format) ? "packed" : "stacked",
                               " weights need a multiple of ", step));
  }
  if (const int64_t columns = column_step(item.format); item.k % columns != 0) {
    return unsupported(str_cat(place_of(s.name), " has ", item.k, " columns; ",
                               format_name(item.format), " needs a multiple of ", columns));
  }
  return {};
}

// The sources are there; checks that they can lie in one weight, and places it.
Status WeightPlan::add_matrix(WeightItem item) {
  item.kind = WeightItem::Kind::kMatrix;
  item.format = placement_.memory_format(item.sources.front().format);
  item.k = item.sources.front().held(1);
  int64_t rows = 0;
  for (size_t i = 0; i < item.sources.size(); ++i) {
    FATHOM_TRY(check_source(item, i));
    rows += item.sources[i].held(0);
  }
  item.n = rows / item.e;
  add(std::move(item));
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
                        RowsWeight* out,
                        JoinRows join) {
  FATHOM_ASSIGN(WeightSpec a, spec(first.name, first.axes, role, 2));
  FATHOM_ASSIGN(WeightSpec b, spec(second.name, second.axes, role, 2));
  FATHOM_CHECK(a.dims[1] == b.dims[1], str_cat(a.name, " and ", b.name, " differ in columns"));
  bool fits = join == JoinRows::kWherePossible || placement_.joins_free_rows();
  if (fits) {
    FATHOM_ASSIGN(fits, lie_in_one(a, b));
  }
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
  FATHOM_ASSIGN(const ExpertRange held,
                experts_of(placement_.shard, count, place_of(with_number(parts.begin()->name, 0))));
  WeightItem item;
  item.role = role;
  item.axes = axes;
  item.stacked = true;
  item.shared = held.count != count;
  item.e = held.count;
  item.linear_out = out;
  item.sources.reserve(static_cast<size_t>(held.count) * parts.size());
  for (int64_t expert = 0; expert < count; ++expert) {
    const bool here = expert >= held.begin && expert < held.begin + held.count;
    for (const RowPart& part : parts) {
      FATHOM_ASSIGN(WeightSpec source, spec(with_number(part.name, expert), part.axes, role, 2));
      (here ? item.sources : of_other_ranks_).push_back(std::move(source));
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
  for (int64_t expert = 0; placement_.may_part_experts() && fits && expert < count; ++expert) {
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
    int64_t nope_dim, int64_t v_dim, Format activations, LinearWeight* w_kc, LinearWeight* w_vc) {
  FATHOM_CHECK(!items_.empty() && items_.back().kind == WeightItem::Kind::kMatrix);
  const WeightItem& kv_b = items_.back();
  FATHOM_CHECK(kv_b.n % (nope_dim + v_dim) == 0, kv_b.sources[0].name);
  if (kv_b.k % kTileRows != 0 || v_dim % kTileRows != 0) {
    return unsupported(str_cat("the absorbed form of ", kv_b.sources[0].name,
                               " needs kv_lora_rank (", kv_b.k, ") and v_head_dim (", v_dim,
                               ") to be multiples of ", kTileRows));
  }
  const bool exact =
      kv_b.format == Format::kF32 || (activations == Format::kF32 && is_quantised(kv_b.format));
  WeightItem keys;
  keys.kind = WeightItem::Kind::kAbsorbedK;
  keys.role = kv_b.role;
  keys.format = exact ? Format::kF32 : Format::kBf16;
  keys.stacked = true;
  keys.shared = kv_b.shared;
  keys.e = kv_b.n / (nope_dim + v_dim);
  keys.n = kv_b.k;
  keys.k = nope_dim;
  keys.derived_from = items_.size() - 1;
  keys.head_rows_k = nope_dim;
  keys.head_rows_v = v_dim;
  keys.axes = "Nh,Lkv,Dn";
  keys.linear_out = w_kc;

  WeightItem values = keys;
  values.kind = WeightItem::Kind::kAbsorbedV;
  values.n = v_dim;
  values.k = kv_b.k;
  values.axes = "Nh,Dv,Lkv";
  values.linear_out = w_vc;
  add(std::move(keys));
  add(std::move(values));
  return {};
}

int64_t WeightPlan::parameters(bool draft) const {
  int64_t total = 0;
  for (const WeightItem& item : items_) {
    if (item.draft != draft) continue;
    for (const WeightSpec& s : item.sources)
      total += s.held_numel();
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
      line->parameters += s.held_numel();
    line->bytes += item.bytes;
  }
  return lines;
}

void WeightPlan::bind(std::byte* base) const {
  const HostReads host = placement_.is_host() ? HostReads::kYes : HostReads::kNo;
  for (const WeightItem& item : items_)
    bind_item(item, base, host);
}

}  // namespace fathom
