#include <bit>
#include <cmath>

#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/sparse/index_prepare/index_prepare.h"
#include "fathom/kernels/sparse/index_prepare/index_prepare_rows.h"

namespace fathom {
namespace {

// ---- queries ----

template <class A>
void query_row(const IndexQuery::Args& a, const IndexSteps& steps, int64_t t, int64_t h) {
  float x[kMaxIndexWidth];
  const A* q = a.q.row<const A>(t) + h * a.q.stride(1);
  for (int64_t d = 0; d < steps.width; ++d)
    x[d] = to_float(q[d]);
  rotate_index_row(steps, a.table.row<const float>(position_of(a.positions, t)), x);
  transform_index_row(steps, x);
  const float scale = store_index_row(steps, x, query_out(a, t, h));
  const float w = a.w.format == Format::kBf16 ? to_float(a.w.row<const Bf16>(t)[h])
                                              : a.w.row<const float>(t)[h];
  a.w_out.row<float>(t)[h] = w * a.weight_scale * scale;
}

void query_rows_portable(const IndexQuery::Args& a, int64_t begin, int64_t end) {
  const IndexSteps steps = steps_of(a);
  with_activation_type(a.q.format, [&]<class A>(A) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < a.q.dim(1); ++h)
        query_row<A>(a, steps, t, h);
    }
  });
}

template <void (*Loop)(const IndexQuery::Args&, int64_t, int64_t)>
Status index_query(Exec& ex, const IndexQuery::Args& a) {
  for_rows(ex, a.q.dim(0), 16 * a.q.dim(1) * a.q.dim(2),
           [&](int64_t begin, int64_t end) { Loop(a, begin, end); });
  return {};
}

// ---- keys ----

/// x[D] = layer_norm(x), rounded to A.
template <class A, class W>
void layer_norm(const W* w, const W* b, float eps, int64_t D, float* x) {
  float sum = 0.0f;
  for (int64_t d = 0; d < D; ++d)
    sum += x[d];
  const float mean = sum / static_cast<float>(D);
  float squares = 0.0f;
  for (int64_t d = 0; d < D; ++d)
    squares += (x[d] - mean) * (x[d] - mean);
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(D) + eps);
  for (int64_t d = 0; d < D; ++d)
    x[d] = to_float(from_float<A>((x[d] - mean) * r * to_float(w[d]) + to_float(b[d])));
}

template <class A>
void key_row(const IndexKeyWrite::Args& a, const IndexSteps& steps, int64_t t) {
  const int64_t slot = a.slots.as<const int64_t>()[t];
  if (slot < 0) return;
  float x[kMaxIndexWidth];
  for (int64_t d = 0; d < steps.width; ++d)
    x[d] = to_float(a.k.row<const A>(t)[d]);
  with_activation_type(a.norm_w.format, [&]<class W>(W) {
    layer_norm<A>(a.norm_w.as<const W>(), a.norm_b.as<const W>(), a.eps, steps.width, x);
  });
  rotate_index_row(steps, a.table.row<const float>(position_of(a.positions, t)), x);
  transform_index_row(steps, x);
  IndexRowOut out{.format = a.values.format};
  out.values = slot_data<std::byte>(bytes_of(a.values), slot);
  if (out.format == Format::kU8) out.group_scales = slot_data<Ue8m0>(a.scales, slot);
  const float scale = store_index_row(steps, x, out);
  if (out.format == Format::kE4m3) *slot_data<float>(a.scales, slot) = scale;
}

Status index_key_write(Exec& ex, const IndexKeyWrite::Args& a) {
  const IndexSteps steps = steps_of(a);
  with_activation_type(a.k.format, [&]<class A>(A) {
    for_rows(ex, a.k.dim(0), 32 * steps.width, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        key_row<A>(a, steps, t);
    });
  });
  return {};
}

// ---- what check() asks ----

Status check_transform(IndexTransform transform, int64_t width) {
  const bool fits = std::has_single_bit(static_cast<uint64_t>(width));
  if (transform == IndexTransform::kNone || fits) return {};
  return invalid_argument(
      str_cat("the transform needs a power of two of channels, and D is ", width));
}

/// `values` holds D values a row, and `scales` what its format needs.
Status check_stored(std::string_view name,
                    const View& values,
                    std::string_view scales_name,
                    const View& scales,
                    Format row_scale,
                    int64_t D) {
  const bool groups = values.format == Format::kU8;
  if (groups && D % kIndexScaleGroup != 0) {
    return invalid_argument(
        str_cat(name, " is u8, two e2m1 codes each, for which D must be a multiple of ",
                kIndexScaleGroup, ", and D is ", D));
  }
  const int64_t elements = index_elements(values.format, D);
  if (values.dim(2) != elements) {
    return invalid_argument(str_cat(name, " has rows of ", values.dim(2), " ",
                                    format_name(values.format), ", expected ", elements,
                                    " for D=", D));
  }
  const Format expected = groups                           ? Format::kUe8m0
                          : values.format == Format::kE4m3 ? row_scale
                                                           : Format::kNone;
  if (scales.format != expected) {
    return invalid_argument(str_cat(scales_name, " is ", format_name(scales.format), " but ", name,
                                    " in ", format_name(values.format), " needs ",
                                    format_name(expected)));
  }
  const int64_t count = groups ? D / kIndexScaleGroup : 1;
  if (!scales.present() || scales.dim(2) == count) return {};
  return invalid_argument(
      str_cat(scales_name, " has ", scales.dim(2), " scales a row, expected ", count));
}

/// Steps of `rows` rows, the quantisation as three a value.
double flops_of_rows(int64_t rows, int64_t D, int64_t R, IndexTransform transform) {
  const auto stages = static_cast<double>(std::bit_width(static_cast<uint64_t>(D)) - 1);
  const auto width = static_cast<double>(D);
  const double per_row = 3.0 * static_cast<double>(R) + 3.0 * width +
                         (transform == IndexTransform::kHadamard ? stages * width : 0.0);
  return static_cast<double>(rows) * per_row;
}

int64_t bytes_of_table(const View& positions, const View& table) {
  return positions.dim(0) * (element_bytes(positions.format) + 4 * table.dim(1));
}

}  // namespace

Cost IndexQuery::cost(const Args& a) {
  return {.flops = flops_of_rows(a.q.dim(0) * a.q.dim(1), a.q.dim(2), a.table.dim(1), a.transform)};
}

void IndexQuery::bytes(const Args& a, Cost& cost) {
  cost.bytes_read = operand_bytes(a.q) + operand_bytes(a.w) + bytes_of_table(a.positions, a.table);
  cost.bytes_written = operand_bytes(a.q_out) + operand_bytes(a.w_out);
  if (a.q_scales.present()) cost.bytes_written += operand_bytes(a.q_scales);
}

Status IndexQuery::check(const Args& a) {
  const int64_t D = a.q.dim(2);
  FATHOM_TRY(check_transform(a.transform, D));
  FATHOM_TRY(check_stored("q_out", a.q_out, "q_scales", a.q_scales, Format::kNone, D));
  return check_positions(a.positions, a.table.dim(0));
}

Cost IndexKeyWrite::cost(const Args& a) {
  const int64_t D = a.k.dim(1);
  Cost cost{.flops = flops_of_rows(a.k.dim(0), D, a.table.dim(1), a.transform)};
  cost.flops += 8.0 * static_cast<double>(a.k.numel());
  return cost;
}

void IndexKeyWrite::bytes(const Args& a, Cost& cost) {
  const int64_t T = a.k.dim(0);
  cost.bytes_read = operand_bytes(a.k) + operand_bytes(a.norm_w) + operand_bytes(a.norm_b) +
                    operand_bytes(a.slots) + bytes_of_table(a.positions, a.table);
  cost.bytes_written = T * a.values.dim(2) * element_bytes(a.values.format);
  if (a.scales.present())
    cost.bytes_written += T * a.scales.dim(2) * element_bytes(a.scales.format);
}

Status IndexKeyWrite::check(const Args& a) {
  const int64_t D = a.k.dim(1);
  if (!(a.eps > 0.0f) || std::isinf(a.eps)) {
    return invalid_argument(str_cat("eps is ", a.eps, " but must be finite and positive"));
  }
  FATHOM_TRY(check_same_format("norm_w", a.norm_w, "norm_b", a.norm_b));
  FATHOM_TRY(check_transform(a.transform, D));
  FATHOM_TRY(check_stored("values", a.values, "scales", a.scales, Format::kF32, D));
  FATHOM_TRY(check_positions(a.positions, a.table.dim(0)));
  return check_slots(a.slots, a.values);
}

namespace {

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<IndexQuery> index_query_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, index_query<avx512::index_query_rows>},
    {"portable", Isa::kPortable, "", kTraits, index_query<query_rows_portable>},
};

// A row a token: the scalar loops take a microsecond or two.
constinit const VariantTable<IndexKeyWrite> index_key_write_cpu{
    {"portable", Isa::kPortable, "", kTraits, index_key_write},
};

}  // namespace fathom
