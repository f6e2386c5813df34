// Cases of sparse_mla_decode: their operands, and the exact answer.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/attn/sparse_mla/sparse_mla_case.h"
#include "fathom/kernels/rope/rope/rope_oracle.h"

namespace fathom {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// A cache as the kernel finds it, with the rows before they were quantised.
struct Source {
  SourceShape shape;
  Tensor values, rope, scales, slots;
  std::shared_ptr<std::vector<float>> exact;  ///< [slots of the cache][W], of coded rows

  /// Rows are counted through pages as they lie, page_gap included.
  int64_t place(int64_t slot) const {
    return slot / shape.page_size * (shape.page_size + shape.page_gap) + slot % shape.page_size;
  }

  /// Channel d < W, rounded to bf16 for queries in bf16.
  double channel(int64_t slot, int64_t d, bool as_bf16) const {
    const int64_t at = place(slot);
    if (!shape.form.coded()) return values[at * shape.form.w + d];
    double code = 0;
    if (shape.form.values == Format::kU8) {
      constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      const auto byte = static_cast<int>(values[at * (shape.form.w / 2) + d / 2]);
      const int nibble = d % 2 == 0 ? byte % 16 : byte / 16;
      code = (nibble >= 8 ? -1 : 1) * kMagnitudes[nibble % 8];
    } else {
      code = values[at * shape.form.w + d];
    }
    const double value =
        code * scales[at * (shape.form.w / shape.form.group) + d / shape.form.group];
    return as_bf16 ? double{to_float(bf16_from_float(static_cast<float>(value)))} : value;
  }

  std::vector<double> row(int64_t slot, bool as_bf16) const {
    std::vector<double> out;
    for (int64_t d = 0; d < shape.form.w; ++d)
      out.push_back(channel(slot, d, as_bf16));
    return with_rope(slot, std::move(out));
  }

  std::vector<double> exact_row(int64_t slot) const {
    const auto begin = exact->begin() + place(slot) * shape.form.w;
    return with_rope(slot, std::vector<double>(begin, begin + shape.form.w));
  }

  /// View of a field without the rows between pages.
  View fields(View v) const {
    if (v.present()) v.dims[1] -= shape.page_gap;
    return v;
  }

  SparseRows at(const Binding& binding) const {
    return {.values = fields(binding(values)),
            .slots = binding(slots),
            .rope = fields(binding(rope)),
            .scales = fields(binding(scales))};
  }

 private:
  std::vector<double> with_rope(int64_t slot, std::vector<double> out) const {
    for (int64_t d = 0; d < shape.form.r; ++d)
      out.push_back(rope[place(slot) * shape.form.r + d]);
    return out;
  }
};

/// Quantises a row by the largest magnitude of each group.
void quantise_row(const Source& x, int64_t at) {
  const RowForm& form = x.shape.form;
  const float* exact = x.exact->data() + at * form.w;
  for (int64_t g = 0; g < form.w / form.group; ++g) {
    double amax = 0;
    for (int64_t d = g * form.group; d < (g + 1) * form.group; ++d)
      amax = std::max(amax, std::fabs(double{exact[d]}));
    const int64_t scale_at = at * (form.w / form.group) + g;
    x.scales.set(scale_at, std::max(amax / form.largest(), 0x1p-9));
    const double scale = x.scales[scale_at];
    for (int64_t d = g * form.group; d < (g + 1) * form.group; ++d) {
      if (form.values == Format::kE4m3) {
        x.values.set(at * form.w + d, exact[d] / scale);
      } else if (d % 2 == 0) {
        const auto code = [&](int64_t i) {
          return e2m1_from_float(static_cast<float>(exact[i] / scale));
        };
        x.values.set((at * form.w + d) / 2, pack_e2m1(code(d), code(d + 1)));
      }
    }
  }
}

/// Codes and scales whose products are of size 1, for caches whose quantisation would take longer
/// than the measurement.
Fill random_codes(const RowForm& form) {
  if (form.values == Format::kU8) return {.dist = Dist::kBytes};
  return {.scale = form.coded() ? form.largest() / 1.5 : 1.0};
}

Fill random_scales(const RowForm& form) {
  return {.dist = Dist::kUniform, .scale = 1 / form.largest(), .offset = 1 / form.largest()};
}

/// Entry j of the list of token t.
int64_t entry_of(const SparseShape& s, const SourceShape& shape, Rng& rng, int64_t t, int64_t j) {
  const int64_t request = s.of.request(t);
  if (shape.listed == Listed::kWindow) {
    const int64_t token = s.of.position(t) - (shape.k - 1 - j);
    const int64_t ring = shape.page_size;
    return request % shape.pages * ring + (token % ring + ring) % ring;
  }
  const int64_t pages = shape.pages / s.of.requests;
  const int64_t row = chosen_row(rng, j, shape.k, pages * shape.page_size);
  if (row < 0) return -1;
  const int64_t page = scattered_page(request * pages + row / shape.page_size, shape.pages);
  return page * shape.page_size + row % shape.page_size;
}

/// Makes what no list names unreadable.
void poison_unlisted(const Source& x, int64_t num_rows, const std::vector<bool>& listed) {
  const auto poison = [&](const Tensor& field) {
    if (!field.present() || field.format() == Format::kU8) return;
    const int64_t width = field.numel() / num_rows;
    for (int64_t i = 0; i < field.numel(); ++i) {
      if (!listed[static_cast<size_t>(i / width)]) field.set(i, kNan);
    }
  };
  poison(x.values);
  poison(x.rope);
  poison(x.scales);
}

Source make_source(const SparseShape& s, const SourceShape& shape, CaseData& c) {
  Source x;
  x.shape = shape;
  const RowForm& form = shape.form;
  const int64_t in_page = shape.page_size + shape.page_gap;
  const int64_t num_rows = shape.pages * in_page;
  const int64_t width = form.values == Format::kU8 ? form.w / 2 : form.w;
  const auto apart = [&](int64_t gap) {
    return RowPlacement{.row_gap = gap, .may_repeat = s.spec.bench};
  };
  x.values =
      c.input({shape.pages, in_page, width}, form.values, random_codes(form), apart(shape.row_gap));
  if (form.r > 0)
    x.rope = c.input({shape.pages, in_page, form.r}, Format::kBf16, {}, apart(shape.rope_gap));
  if (form.coded()) {
    x.scales = c.input({shape.pages, in_page, form.w / form.group}, form.scale, random_scales(form),
                       apart(shape.scale_gap));
    if (!s.spec.bench) {
      x.exact = std::make_shared<std::vector<float>>();
      for (int64_t i = 0; i < num_rows * form.w; ++i)
        x.exact->push_back(c.rng().next_normal());
      for (int64_t at = 0; at < num_rows; ++at)
        quantise_row(x, at);
    }
  }
  const bool recorded = shape.listed != Listed::kAny;
  x.slots =
      c.input({s.t, shape.k}, Format::kI32, {}, {.row_gap = recorded ? 0 : 3, .rows_per_batch = 1});
  std::vector<bool> listed(static_cast<size_t>(num_rows));
  x.slots.fill([&](int64_t i) {
    if (recorded) return double(entry_of(s, shape, c.rng(), i / shape.k, i % shape.k));
    const bool empty = s.empty_token && i / shape.k == 1;
    if (empty || (shape.none_every > 0 && i % shape.none_every == 1)) return -1.0;
    const auto slot = c.rng().next_below(static_cast<uint32_t>(shape.pages * shape.page_size));
    listed[static_cast<size_t>(x.place(slot))] = true;
    return double(slot);
  });
  if (!s.spec.bench) poison_unlisted(x, num_rows, listed);
  return x;
}

struct Rotation {
  Tensor positions, table;  ///< absent: nothing is turned
};

Rotation make_rotation(const SparseShape& s, CaseData& c) {
  Rotation all;
  if (s.turned == 0) return all;
  all.positions = c.input({s.t}, Format::kI32, {}, {.rows_per_batch = 1});
  const bool recorded = s.rows.listed != Listed::kAny;
  all.positions.fill([&](int64_t t) {
    return recorded ? s.of.position(t) : c.rng().next_below(static_cast<uint32_t>(s.positions));
  });
  all.table = c.input({s.positions, s.turned}, Format::kF32);
  oracle::fill_rope_rows(all.table, all.positions);
  return all;
}

/// Row t * N + n of the output.
oracle::AttentionRow exact_row(const SparseShape& s,
                               const std::vector<Source>& sources,
                               const Tensor& q,
                               const Tensor& sink,
                               const Rotation& by,
                               double scale,
                               int64_t row,
                               bool unquantised) {
  std::vector<std::vector<double>> keys;
  for (const Source& x : sources) {
    for (int64_t j = 0; j < x.shape.k; ++j) {
      const auto slot = static_cast<int64_t>(x.slots.at(row / s.n, j));
      if (slot < 0) continue;
      keys.push_back(unquantised && x.exact != nullptr ? x.exact_row(slot)
                                                       : x.row(slot, s.q == Format::kBf16));
    }
  }
  const auto key = [&](int64_t j) { return keys[static_cast<size_t>(j)]; };
  oracle::AttentionRow out =
      oracle::attend(q.row(row), static_cast<int64_t>(keys.size()), s.l, scale, key, key);
  apply_sparse_sink(out, sink, row % s.n);
  if (by.table.present())
    oracle::rotate_back(out.o, by.table, static_cast<int64_t>(by.positions[row / s.n]));
  return out;
}

/// What codes cost: values and logits each move by the error of a code (2.6 % of e4m3, 9.5 % of
/// e2m1 under e4m3 scales, root mean square of normal data). Twice what was measured: 6.5e-4 and
/// 6.8e-3.
Gate full_precision_gate(const SparseShape& s) {
  return {.diff = s.rows.form.values == Format::kU8 ? 1.4e-2 : 1.3e-3};
}

}  // namespace

Tensor make_sparse_sink(CaseData& c, Sink kind, int64_t n) {
  if (kind == Sink::kNone) return {};
  const Tensor sink = c.input({n}, Format::kF32, {.scale = 2});
  if (kind == Sink::kInfinite) {
    for (int64_t i = 0; i < n; ++i)
      sink.set(i, i % 3 == 0 ? -kInf : (i % 3 == 1 ? kInf : 1.0));
  }
  return sink;
}

void apply_sparse_sink(oracle::AttentionRow& row, const Tensor& sink, int64_t head) {
  if (!sink.present() || row.lse == -kInf) return;
  for (double& o : row.o)
    o /= 1.0 + std::exp(sink[head] - row.lse);
}

Gate sparse_gate(Format q, Format o) {
  return gates::attention(q == Format::kF32 && o == Format::kF32 ? Format::kF32 : Format::kBf16);
}

void add_sparse_decode_case(CaseList& list, const SparseShape& s) {
  add_case<SparseMlaDecode>(list, s.spec, [s](CaseBuilder<SparseMlaDecode>& c) {
    c.set_batch(s.t);
    const Tensor q = c.input({s.t, s.n, s.d()}, s.q, {.scale = s.q_scale},
                             {.row_gap = s.q_gap, .rows_per_batch = 1});
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.d()));
    std::vector<Source> sources = {make_source(s, s.rows, c)};
    if (s.extra.k > 0) sources.push_back(make_source(s, s.extra, c));
    const Tensor sink = make_sparse_sink(c, s.sink, s.n);
    const Rotation by = make_rotation(s, c);
    const Tensor o = c.output({s.t, s.n, s.l}, s.out(), {.row_gap = s.o_gap, .rows_per_batch = 1});
    Tensor lse;
    if (s.lse) lse = c.output({s.t, s.n}, Format::kF32, {.rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return SparseMlaDecode::Args{.q = at(q),
                                   .rows = sources[0].at(at),
                                   .o = at(o),
                                   .extra = sources.size() > 1 ? sources[1].at(at) : SparseRows{},
                                   .sink = at(sink),
                                   .lse = at(lse),
                                   .scale = scale,
                                   .positions = at(by.positions),
                                   .table = at(by.table)};
    });
    const auto rows_of = [=](bool unquantised) {
      return std::make_shared<oracle::AttentionRows>([=](int64_t row) {
        return exact_row(s, sources, q, sink, by, double{scale}, row, unquantised);
      });
    };
    const auto rows = rows_of(false);
    c.expect_each(o, sparse_gate(s.q, s.out()), [=](int64_t row, int64_t col) {
      return (*rows)(row).o[static_cast<size_t>(col)];
    });
    if (s.spec.bench) return;
    if (s.lse) {
      c.expect_each(lse, gates::log_sum_exp(),
                    [=](int64_t row, int64_t col) { return (*rows)(row * s.n + col).lse; });
    }
    const bool apart = s.q_scale > 1;  // the error of a code decides which row takes all
    if (!s.rows.form.coded() || o.numel() < 4096 || s.sink == Sink::kInfinite || apart) return;
    const auto unquantised = rows_of(true);
    c.expect_full_precision(o, full_precision_gate(s), [=](int64_t row, int64_t col) {
      return (*unquantised)(row).o[static_cast<size_t>(col)];
    });
  });
}

}  // namespace fathom
