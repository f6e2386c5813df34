#include <algorithm>
#include <numeric>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/moe/permute/permute.h"

namespace fathom {
namespace {

struct Shape {
  int64_t tokens;
  int64_t top_k;
  int64_t width;
  Format format = Format::kBf16;
};

std::string name_of(const Shape& s) {
  const bool chunk = s.tokens * s.top_k * s.width > 100'000'000;  // rows that no cache holds
  return str_cat(chunk ? "chunk_t" : "t", s.tokens, "_k", s.top_k, "_d", s.width, "_",
                 format_name(s.format));
}

/// The rows of a tensor of permuted rows in a random order: dest[t,k] of random routing.
template <class K>
std::vector<int64_t> random_order(CaseBuilder<K>& c, int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = count - 1; i > 0; --i) {
    const auto j = static_cast<size_t>(c.rng().next_below(static_cast<uint32_t>(i + 1)));
    std::swap(order[static_cast<size_t>(i)], order[j]);
  }
  return order;
}

/// The call, and its answer: row src_row[r] of x, or zeros for a negative one.
void expect_gathered(CaseBuilder<PermuteRows>& c,
                     const Tensor& x,
                     const Tensor& src_row,
                     const Tensor& y) {
  c.bind([=](const Binding& at) {
    return PermuteRows::Args{.x = at(x), .src_row = at(src_row), .y = at(y)};
  });
  c.expect_rows(y, gates::exact(), [=](int64_t r, std::span<double> out) {
    std::fill(out.begin(), out.end(), 0.0);
    if (src_row[r] < 0) return;
    const std::vector<double> row = x.row(static_cast<int64_t>(src_row[r]));
    std::copy(row.begin(), row.end(), out.begin());
  });
}

/// Each row of x top_k times; of a call with fewer rows of y, as many rows of x.
void add_permute_case(
    CaseList& list, const CaseSpec& spec, const Shape& s, int64_t rows, bool some_missing) {
  add_case<PermuteRows>(list, spec, [=, bench = spec.bench](CaseBuilder<PermuteRows>& c) {
    c.set_batch(rows);
    const bool gaps = !bench;  // in a model rows follow each other
    const Tensor x = c.input({s.tokens, s.width}, s.format, {}, {.row_gap = gaps ? 5 : 0});
    const Tensor src_row = c.input({rows}, Format::kI32, {}, {.rows_per_batch = 1});
    const Tensor y =
        c.output({rows, s.width}, s.format, {.row_gap = gaps ? 2 : 0, .rows_per_batch = 1});
    if (!format_info(s.format).is_float) x.fill([](int64_t i) { return i * 37 % 256; });
    const std::vector<int64_t> order = random_order(c, rows);
    src_row.fill([&](int64_t r) {
      return some_missing && r % 3 == 1 ? -1 : order[static_cast<size_t>(r)] * s.tokens / rows;
    });
    expect_gathered(c, x, src_row, y);
  });
}

void add_permute(CaseList& list, const Shape& s, bool some_missing, bool bench = false) {
  const CaseSpec spec{.name = name_of(s) + (some_missing ? "_some_missing" : ""),
                      .op = "experts",
                      .bench = bench,
                      .phase = phase_of_case(bench, s.tokens),
                      .columns = str_cat("M=", s.tokens, ";topk=", s.top_k, ";H=", s.width)};
  add_permute_case(list, spec, s, s.tokens * s.top_k, some_missing);
}

/// Few rows of an x that takes a good part of the last cache of a GPU, where rows are gathered in
/// more than one piece.
void add_permute_of_large(CaseList& list, const Shape& s, int64_t rows) {
  const CaseSpec spec{.name = str_cat("r", rows, "_of_", name_of(s)), .op = "experts"};
  add_case<PermuteRows>(list, spec, [=](CaseBuilder<PermuteRows>& c) {
    c.set_batch(rows);
    const Tensor x = c.input({s.tokens, s.width}, s.format);
    const Tensor src_row = c.input({rows}, Format::kI32, {}, {.rows_per_batch = 1});
    const Tensor y = c.output({rows, s.width}, s.format, {.rows_per_batch = 1});
    src_row.fill([&](int64_t r) {
      return r % 7 == 3 ? -1
                        : static_cast<int64_t>(c.rng().next_below(static_cast<uint32_t>(s.tokens)));
    });
    expect_gathered(c, x, src_row, y);
  });
}

struct Parts {
  bool weighted = true;
  bool added = true;
  bool some_missing = false;
  Format add_format = Format::kBf16;
  Format out_format = Format::kBf16;
  Format weight_format = Format::kF32;
};

void add_unpermute_case(CaseList& list, const CaseSpec& spec, const Shape& s, const Parts& parts);

void add_unpermute(CaseList& list, const Shape& s, const Parts& parts, bool bench = false) {
  std::string name = name_of(s);
  if (!parts.weighted) name += "_unweighted";
  if (!parts.added) name += "_nothing_added";
  if (parts.some_missing) name += "_some_missing";
  if (parts.add_format != s.format || parts.out_format != s.format) {
    str_append(name, str_cat("_add_", format_name(parts.add_format), "_to_",
                             format_name(parts.out_format)));
  }
  if (parts.weight_format != Format::kF32) {
    str_append(name, str_cat("_weights_", format_name(parts.weight_format)));
  }
  const CaseSpec spec{.name = name,
                      .op = "moe_combine",
                      .bench = bench,
                      .phase = phase_of_case(bench, s.tokens),
                      .columns = str_cat("M=", s.tokens, ";topk=", s.top_k, ";H=", s.width)};
  add_unpermute_case(list, spec, s, parts);
}

void add_unpermute_case(CaseList& list, const CaseSpec& spec, const Shape& s, const Parts& parts) {
  add_case<UnpermuteWeightedSum>(
      list, spec, [=, bench = spec.bench](CaseBuilder<UnpermuteWeightedSum>& c) {
        c.set_batch(s.tokens);
        // In a model, and so where it is timed, rows follow each other.
        const RowPlacement rows{.row_gap = bench ? 0 : 3, .rows_per_batch = 1};
        const int64_t slots = s.tokens * s.top_k;
        const Tensor x = c.input({slots, s.width}, s.format, {.dist = Dist::kHeavyTail},
                                 {.row_gap = bench ? 0 : 1});
        const Tensor dest = c.input({s.tokens, s.top_k}, Format::kI32, {}, rows);
        const std::vector<int64_t> order = random_order(c, slots);
        dest.fill([&](int64_t i) {
          return parts.some_missing && i % 5 < 2 ? -1 : order[static_cast<size_t>(i)];
        });
        Tensor weights;
        if (parts.weighted) {
          weights =
              c.input({s.tokens, s.top_k}, parts.weight_format, {.dist = Dist::kUniform}, rows);
        }
        Tensor add;
        if (parts.added) add = c.input({s.tokens, s.width}, parts.add_format, {}, rows);
        const Tensor y = c.output({s.tokens, s.width}, parts.out_format, rows);
        c.bind([=](const Binding& at) {
          return UnpermuteWeightedSum::Args{
              .x = at(x), .dest = at(dest), .weights = at(weights), .add = at(add), .y = at(y)};
        });
        // Sums cancel; an absolute part for the float32 rounding of sums of a few terms near 10.
        Gate gate = gates::row_op(parts.out_format);
        gate.abs = 1e-5;
        c.expect_rows(y, gate, [=](int64_t t, std::span<double> out) {
          for (size_t d = 0; d < out.size(); ++d) {
            out[d] = add.present() ? add.at(t, static_cast<int64_t>(d)) : 0.0;
          }
          for (int64_t k = 0; k < s.top_k; ++k) {
            if (dest.at(t, k) < 0) continue;
            const std::vector<double> row = x.row(static_cast<int64_t>(dest.at(t, k)));
            const double w = weights.present() ? weights.at(t, k) : 1.0;
            for (size_t d = 0; d < out.size(); ++d)
              out[d] += w * row[d];
          }
        });
      });
}

void add_topk_sum_case(CaseList& list, const CaseSpec& spec, const Shape& s, Format out_format);

void add_topk_sum(CaseList& list, const Shape& s, Format out_format, bool bench = false) {
  std::string name = name_of(s);
  if (out_format != s.format) str_append(name, str_cat("_to_", format_name(out_format)));
  const CaseSpec spec{.name = name,
                      .op = "moe_combine",
                      .bench = bench,
                      .phase = phase_of_case(bench, s.tokens),
                      .columns = str_cat("M=", s.tokens, ";topk=", s.top_k, ";H=", s.width)};
  add_topk_sum_case(list, spec, s, out_format);
}

void add_topk_sum_case(CaseList& list, const CaseSpec& spec, const Shape& s, Format out_format) {
  add_case<TopkSum>(list, spec, [=, bench = spec.bench](CaseBuilder<TopkSum>& c) {
    c.set_batch(s.tokens);
    const RowPlacement rows{.row_gap = bench ? 0 : 3, .rows_per_batch = 1};
    const Tensor x = c.input({s.tokens, s.top_k, s.width}, s.format, {}, rows);
    const Tensor y = c.output({s.tokens, s.width}, out_format, rows);
    c.bind(
        [=](const Binding& at) { return TopkSum::Args{.x = at(x), .y = at(y), .factor = 2.5f}; });
    Gate gate = gates::row_op(out_format);
    gate.abs = 1e-5;  // as above
    c.expect_rows(y, gate, [=](int64_t t, std::span<double> out) {
      std::fill(out.begin(), out.end(), 0.0);
      for (int64_t k = 0; k < s.top_k; ++k) {
        const std::vector<double> row = x.row(t * s.top_k + k);
        for (size_t d = 0; d < out.size(); ++d)
          out[d] += 2.5 * row[d];
      }
    });
  });
}

void add_reference_points(CaseList& list) {
  const ReferenceLimit limit{.most_tokens = 2048,
                             .why = "not of the 23; the tables of the layer end at 2,048 tokens"};
  for (const ReferencePoint& p : reference_points(list, "permute_rows", limit)) {
    add_reference_case(list, p, {.op = "shuffle_rows"}, [&](CaseList& one) {
      add_permute(one, {p.tokens(), 8, 7168}, false, true);
    });
  }
  for (const ReferencePoint& p : reference_points()) {
    add_reference_case(list, p, {.op = "moe_combine"}, [&](CaseList& one) {
      add_unpermute(one, {p.tokens(), 8, 7168}, {}, true);
    });
  }
}

}  // namespace

void add_permute_cases(CaseList& list) {
  const Parts all_f32{.add_format = Format::kF32, .out_format = Format::kF32};
  for (int64_t t : {0, 1, 2, 3, 7}) {
    add_permute(list, {t, 8, 96}, false);
    add_unpermute(list, {t, 8, 96}, {});
    add_topk_sum(list, {t, 8, 96}, Format::kBf16);
  }
  for (int64_t width : {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1031}) {
    add_permute(list, {5, 3, width}, true);
    add_unpermute(list, {5, 3, width}, {.some_missing = true});
    add_unpermute(list, {5, 3, width, Format::kF32}, all_f32);
    add_topk_sum(list, {5, 3, width, Format::kF32}, Format::kF32);
  }
  for (Format f : {Format::kF32, Format::kF16, Format::kE4m3, Format::kU8}) {
    add_permute(list, {6, 2, 37, f}, true);
  }
  // 11.4 MB, of which a twelfth of a cache of 50 or 60 MB takes half: two pieces, by sixteen bytes
  // and by elements.
  add_permute_of_large(list, {2200, 1, 1300, Format::kF32}, 50);
  add_permute_of_large(list, {2200, 1, 2601}, 120);
  // More slots than are at hand at once.
  add_unpermute(list, {3, 70, 130}, {.some_missing = true});
  add_unpermute(list, {2, 130, 20, Format::kF32}, all_f32);
  // One row of a real width: its columns are shared out.
  add_unpermute(list, {1, 8, 7168}, {.some_missing = true});
  add_unpermute(list, {1, 8, 7001}, {.weighted = false, .added = false});
  add_unpermute(list, {4, 1, 70}, {.add_format = Format::kF32});
  add_unpermute(list, {4, 6, 70, Format::kF32}, {});
  add_unpermute(list, {4, 6, 70}, all_f32);
  // The reference's weights have the format of its output.
  for (Format f : {Format::kBf16, Format::kF16}) {
    for (int64_t width : {1, 63, 64, 65, 130}) {
      add_unpermute(list, {5, 3, width, f},
                    {.added = false, .add_format = f, .out_format = f, .weight_format = f});
      add_topk_sum(list, {5, 3, width, f}, f);
    }
    add_unpermute(list, {5, 3, 70, f}, {.add_format = f, .out_format = f, .weight_format = f});
  }
  add_unpermute(list, {5, 3, 70, Format::kF16}, {.some_missing = true});
  add_topk_sum(list, {4, 6, 70}, Format::kF32);
  add_topk_sum(list, {4, 1, 70, Format::kF32}, Format::kBf16);

  for (int64_t t : {1, 8, 32, 128, 1024}) {
    add_permute(list, {t, 8, 7168}, false, true);
    add_unpermute(list, {t, 8, 7168}, {.added = false}, true);
    add_topk_sum(list, {t, 9, 7168}, Format::kBf16, true);
  }
  // 9 rows of 14 kB a token: 270 MB.
  add_permute(list, {2080, 8, 7168}, false, true);
  add_unpermute(list, {2080, 8, 7168}, {.added = false}, true);
  add_topk_sum(list, {1870, 9, 7168}, Format::kBf16, true);
  add_reference_points(list);
  list.serve_calls("permute_rows",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     const Shape s{call.dim("x", 0), 1, call.dim("x", 1), call.format("x")};
                     add_permute_case(one, spec, s, call.dim("y", 0), false);
                   });
  list.serve_calls("topk_sum", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_topk_sum_case(one, spec,
                      {call.dim("x", 0), call.dim("x", 1), call.dim("x", 2), call.format("x")},
                      call.format("y"));
  });
  list.serve_calls("unpermute_weighted_sum", [](CaseList& one, const RecordedCall& call,
                                                const CaseSpec& spec) {
    const bool added = call.has("add");
    const bool weighted = call.has("weights");
    add_unpermute_case(
        one, spec, {call.dim("dest", 0), call.dim("dest", 1), call.dim("x", 1), call.format("x")},
        {.weighted = weighted,
         .added = added,
         .add_format = added ? call.format("add") : Format::kNone,
         .out_format = call.format("y"),
         .weight_format = weighted ? call.format("weights") : Format::kNone});
  });
}

}  // namespace fathom
