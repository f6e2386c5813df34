#include <cmath>
#include <limits>

#include "fathom/kernels/attn/merge_state/merge_state.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"

namespace fathom {
namespace {

struct MergeShape {
  CaseSpec spec;
  int64_t t;
  int64_t n;
  int64_t d;
  Format in = Format::kBf16;
  Format out = Format::kBf16;
  LseBase base = LseBase::kE;
};

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Shares {
  double a = 0;
  double b = 0;
  double lse = -kInf;
};

Shares exact_shares(double lse_a, double lse_b, LseBase base) {
  const double log_of_base = base == LseBase::kE ? 1.0 : std::log(2.0);
  const double a = std::isinf(lse_a) ? 0.0 : 1.0;
  const double b = std::isinf(lse_b) ? 0.0 : 1.0;
  if (a + b == 0.0) return {};
  if (b == 0.0) return {1.0, 0.0, lse_a};
  if (a == 0.0) return {0.0, 1.0, lse_b};
  const double ratio = std::exp((lse_b - lse_a) * log_of_base);  // weight of b over that of a
  return {1.0 / (1.0 + ratio), ratio / (1.0 + ratio), lse_a + std::log1p(ratio) / log_of_base};
}

void add_merge_case(CaseList& list, const MergeShape& s) {
  add_case<MergeState>(list, s.spec, [s](CaseBuilder<MergeState>& c) {
    c.set_batch(s.t);
    // In a model, and so where it is timed, rows follow each other.
    const RowPlacement placed = {.row_gap = s.spec.bench ? 0 : 4, .rows_per_batch = 1};
    const Tensor o_a = c.input({s.t, s.n, s.d}, s.in, {}, placed);
    const Tensor o_b = c.input({s.t, s.n, s.d}, s.in, {}, placed);
    const auto lse_input = [&](double infinity, int64_t phase) {
      const Tensor lse = c.input({s.t, s.n}, Format::kF32, {.scale = 4}, {.rows_per_batch = 1});
      for (int64_t i = phase; i < lse.numel(); i += 5)
        lse.set(i, infinity);
      return lse;
    };
    // Row i has no keys on side a if i % 5 == 0, none on side b if i % 5 == 3, none at all if 7 |
    // i.
    const Tensor lse_a = lse_input(-kInf, 0);
    const Tensor lse_b = lse_input(kInf, 3);
    for (int64_t i = 0; i < lse_a.numel(); i += 7) {
      lse_a.set(i, kInf);
      lse_b.set(i, -kInf);
    }
    // A side without keys may hold anything.
    for (int64_t i = 0; i < o_a.numel(); ++i) {
      if (std::isinf(lse_a[i / s.d])) o_a.set(i, std::numeric_limits<double>::quiet_NaN());
      if (std::isinf(lse_b[i / s.d])) o_b.set(i, std::numeric_limits<double>::quiet_NaN());
    }
    const Tensor o = c.output({s.t, s.n, s.d}, s.out, placed);
    const Tensor lse = c.output({s.t, s.n}, Format::kF32, {.rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return MergeState::Args{.o_a = at(o_a),
                              .lse_a = at(lse_a),
                              .o_b = at(o_b),
                              .lse_b = at(lse_b),
                              .o = at(o),
                              .lse = at(lse),
                              .base = s.base};
    });
    c.expect_each(o, gates::row_op(s.out), [=](int64_t row, int64_t col) {
      const Shares shares = exact_shares(lse_a[row], lse_b[row], s.base);
      const double a = shares.a == 0 ? 0.0 : shares.a * o_a[row * s.d + col];
      const double b = shares.b == 0 ? 0.0 : shares.b * o_b[row * s.d + col];
      return a + b;
    });
    c.expect_each(lse, gates::log_sum_exp(), [=](int64_t row, int64_t col) {
      const int64_t i = row * s.n + col;
      return exact_shares(lse_a[i], lse_b[i], s.base).lse;
    });
  });
}

}  // namespace

void add_merge_state_cases(CaseList& list) {
  for (const LseBase base : {LseBase::kE, LseBase::k2}) {
    const std::string_view suffix = base == LseBase::kE ? "" : "_base2";
    for (int64_t t : {0, 1, 2, 3, 13}) {
      add_merge_case(list, {.spec = {.name = str_cat("t", t, "_n5_d33", suffix)},
                            .t = t,
                            .n = 5,
                            .d = 33,
                            .base = base});
      add_merge_case(list, {.spec = {.name = str_cat("t", t, "_n5_d33_f32", suffix)},
                            .t = t,
                            .n = 5,
                            .d = 33,
                            .in = Format::kF32,
                            .out = Format::kF32,
                            .base = base});
    }
  }
  for (int64_t d : {1, 15, 16, 17, 128}) {
    add_merge_case(list, {.spec = {.name = str_cat("t9_n8_d", d)}, .t = 9, .n = 8, .d = d});
  }
  for (const LseBase base : {LseBase::kE, LseBase::k2}) {
    for (int64_t d : {8, 33, 128}) {
      add_merge_case(
          list,
          {.spec = {.name = str_cat("t9_n3_d", d, "_f16", base == LseBase::kE ? "" : "_base2")},
           .t = 9,
           .n = 3,
           .d = d,
           .in = Format::kF16,
           .out = Format::kF16,
           .base = base});
    }
  }
  add_merge_case(
      list,
      {.spec = {.name = "t6_n4_d64_f32_to_bf16"}, .t = 6, .n = 4, .d = 64, .in = Format::kF32});
  for (int64_t t : {64, 512}) {
    const auto spec = [&](std::string_view model) {
      CaseSpec s = timed_spec(model, "_chunked_prefix_attn_mha", t);
      s.phase = "prefill";  // no decoding step merges
      return s;
    };
    add_merge_case(list, {.spec = spec("r1"), .t = t, .n = 128, .d = 128});
    add_merge_case(list, {.spec = spec("v2_lite"), .t = t, .n = 16, .d = 128});
  }
  list.serve_calls("merge_state",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     add_merge_case(one, {.spec = spec,
                                          .t = call.dim("o_a", 0),
                                          .n = call.dim("o_a", 1),
                                          .d = call.dim("o_a", 2),
                                          .in = call.format("o_a"),
                                          .out = call.format("o")});
                   });
}

}  // namespace fathom
