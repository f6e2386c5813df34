#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/sparse/topk_rows/topk_rows.h"

namespace fathom {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// IEEE 754 totalOrder as an order of integers.
uint64_t total_order(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  return bits >> 63 != 0 ? ~bits : bits | uint64_t{1} << 63;
}

/// Positions of the k largest by a full sort, -1 where there are fewer.
std::vector<int64_t> best_positions(std::vector<double> scores, int64_t k) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const uint64_t p = total_order(scores[static_cast<size_t>(a)]);
    const uint64_t q = total_order(scores[static_cast<size_t>(b)]);
    return p > q || (p == q && a < b);
  });
  const auto count = std::min(order.size(), static_cast<size_t>(k));
  order.resize(count);
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(k), -1);
  return order;
}

enum class Scores {
  kNormal,
  kCoarse,  ///< 64 distinct values: many ties at the threshold
  kEqual,   ///< one value
  kAscending,
  kDescending,
  kHidden,    ///< the largest stand in one run, where a sample may miss them
  kExtremes,  ///< NaN of both signs, infinities, zeros of both signs, denormals
  kMasked,    ///< -inf from a tenth of the row on
};

std::string_view name_of(Scores kind) {
  constexpr std::string_view kNames[] = {
      "", "_coarse", "_equal", "_ascending", "_descending", "_hidden", "_extremes", "_masked"};
  return kNames[static_cast<size_t>(kind)];
}

double score_of(Scores kind, double normal, int64_t i, int64_t columns) {
  constexpr double kOdd[] = {NAN, -kInf, -0.0, 0.0, kInf, -NAN, 0x1p-149, -0x1p-149, 1.0, -1.0};
  switch (kind) {
    case Scores::kNormal:
      return normal;
    case Scores::kCoarse:
      return std::floor(normal * 8);
    case Scores::kEqual:
      return -1.5;
    case Scores::kAscending:
      return static_cast<double>(i);
    case Scores::kDescending:
      return -static_cast<double>(i);
    case Scores::kHidden:
      return i >= columns - columns / 9 ? 100 + normal : normal;
    case Scores::kExtremes:
      return i % 3 == 0 ? normal : kOdd[i % 10];
    case Scores::kMasked:
      return i > columns / 10 ? -kInf : normal;
  }
  return normal;
}

enum class Starts { kAbsent, kGiven };

struct Shape {
  int64_t rows;
  int64_t columns;
  int64_t k;
  Scores kind = Scores::kNormal;
  Starts starts = Starts::kAbsent;
  bool whole_rows = false;  ///< every length is all that the row holds
  bool gaps = true;         ///< between rows
};

/// The operands that all three kernels share.
struct Operands {
  Tensor scores, lengths, row_starts;
  Shape shape;

  template <class K>
  Operands(CaseBuilder<K>& c, const Shape& s) : shape(s) {
    const int64_t cut = c.batch_rows() > 0 ? 1 : 0;
    const RowPlacement own{.row_gap = 0, .rows_per_batch = cut};
    scores = c.input({s.rows, s.columns}, Format::kF32, {},
                     {.row_gap = s.gaps ? 5 : 0, .rows_per_batch = cut});
    if (s.kind != Scores::kNormal) {
      for (int64_t i = 0; i < scores.numel(); ++i)
        scores.set(i, score_of(s.kind, scores[i], i % s.columns, s.columns));
    }
    if (s.starts == Starts::kGiven) {
      row_starts = c.input({s.rows}, Format::kI32, {}, own);
      row_starts.fill([&](int64_t b) { return s.columns == 0 ? 0 : b * 7 % (s.columns / 2 + 1); });
    }
    lengths = c.input({s.rows}, Format::kI32, {}, own);
    lengths.fill([&](int64_t b) {
      const int64_t room = s.columns - start(b);
      const int64_t choices[] = {room, s.k + 1, s.k, 0, 1, room - 1, s.k - 1, room / 2};
      return s.whole_rows ? room : std::clamp<int64_t>(choices[b % 8], 0, room);
    });
  }

  int64_t start(int64_t b) const {
    return row_starts.present() ? static_cast<int64_t>(row_starts[b]) : 0;
  }

  std::vector<int64_t> best(int64_t b) const {
    const std::vector<double> row = scores.row(b);
    const auto begin = row.begin() + start(b);
    return best_positions({begin, begin + static_cast<int64_t>(lengths[b])}, shape.k);
  }
};

CaseSpec spec_of(const Shape& s, std::string_view phase) {
  const bool chunk = s.rows * s.columns * 4 > 200'000'000;  // scores that no cache holds
  return {.name = str_cat(chunk ? "chunk_b" : "b", s.rows, "_l", s.columns, "_k", s.k,
                          name_of(s.kind), s.starts == Starts::kGiven ? "_starts" : ""),
          .op = "index_topk",
          .bench = !phase.empty(),
          .phase = std::string(phase),
          .columns = str_cat("M=", s.rows, ";N=", s.columns, ";topk=", s.k)};
}

constexpr RowPlacement kOutRows{.row_gap = 2, .rows_per_batch = 1};

void add_plain_case(CaseList& list, const CaseSpec& spec, const Shape& s) {
  add_case<TopkRows>(list, spec, [=](CaseBuilder<TopkRows>& c) {
    c.set_batch(s.rows);
    const Operands o(c, s);
    const RowPlacement rows{.row_gap = s.gaps ? kOutRows.row_gap : 0, .rows_per_batch = 1};
    const Tensor ids = c.output({s.rows, s.k}, Format::kI32, rows);
    c.bind([=](const Binding& at) {
      return TopkRows::Args{.scores = at(o.scores),
                            .lengths = at(o.lengths),
                            .row_starts = at(o.row_starts),
                            .ids = at(ids)};
    });
    c.expect_rows(ids, gates::exact(), [=](int64_t b, std::span<double> out) {
      const std::vector<int64_t> best = o.best(b);
      std::copy(best.begin(), best.end(), out.begin());
    });
  });
}

void add_plain(CaseList& list, const Shape& s, std::string_view phase = "") {
  add_plain_case(list, spec_of(s, phase), s);
}

void add_ragged(CaseList& list, const Shape& s, std::string_view phase = "") {
  add_case<TopkRowsRagged>(list, spec_of(s, phase), [=](CaseBuilder<TopkRowsRagged>& c) {
    c.set_batch(s.rows);
    const Operands o(c, s);
    const Tensor offsets = c.input({s.rows}, Format::kI32, {}, {.rows_per_batch = 1});
    offsets.fill([](int64_t b) { return b * 1000 + 3; });
    const Tensor ids = c.output({s.rows, s.k}, Format::kI32, kOutRows);
    c.bind([=](const Binding& at) {
      return TopkRowsRagged::Args{.scores = at(o.scores),
                                  .lengths = at(o.lengths),
                                  .offsets = at(offsets),
                                  .row_starts = at(o.row_starts),
                                  .ids = at(ids)};
    });
    c.expect_rows(ids, gates::exact(), [=](int64_t b, std::span<double> out) {
      const std::vector<int64_t> best = o.best(b);
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = best[i] < 0 ? -1.0 : static_cast<double>(best[i]) + offsets[b];
    });
  });
}

/// `per_request` rows a request; 1 without starts is a decode, whose cu_seqlens_q is not read.
void add_paged(CaseList& list, const Shape& s, int64_t per_request, std::string_view phase = "") {
  CaseSpec spec = spec_of(s, phase);
  spec.name += str_cat("_q", per_request);
  add_case<TopkRowsPaged>(list, spec, [=](CaseBuilder<TopkRowsPaged>& c) {
    const bool decode = per_request == 1 && s.starts == Starts::kAbsent;
    if (decode) c.set_batch(s.rows);
    const Operands o(c, s);
    // One request without rows in the middle, where there are several.
    const int64_t requests = decode ? s.rows : (s.rows + per_request - 1) / per_request + 1;
    const Tensor table = c.input({requests, s.columns}, Format::kI32, {},
                                 {.row_gap = 3, .rows_per_batch = decode ? 1 : 0});
    table.fill([&](int64_t i) { return static_cast<double>(i * 7919 % 1000003); });
    const Tensor begins = c.input({requests + 1}, Format::kI32);
    begins.fill([&](int64_t r) {
      const int64_t before = r > requests / 2 ? r - 1 : r;
      return decode ? -5 : std::min(s.rows, before * per_request);
    });
    const Tensor slots =
        c.output({s.rows, s.k}, Format::kI32, {.row_gap = 2, .rows_per_batch = decode ? 1 : 0});
    c.bind([=](const Binding& at) {
      View cu_seqlens_q = at(begins);
      if (decode) cu_seqlens_q = slice_rows(cu_seqlens_q, 0, at.batch_rows() + 1);
      return TopkRowsPaged::Args{.scores = at(o.scores),
                                 .lengths = at(o.lengths),
                                 .page_table = at(table),
                                 .cu_seqlens_q = cu_seqlens_q,
                                 .row_starts = at(o.row_starts),
                                 .slots = at(slots)};
    });
    c.expect_rows(slots, gates::exact(), [=](int64_t b, std::span<double> out) {
      int64_t request = b;
      for (int64_t r = 0; !decode && r < requests; ++r) {
        if (begins[r] <= static_cast<double>(b) && static_cast<double>(b) < begins[r + 1])
          request = r;
      }
      const std::vector<int64_t> best = o.best(b);
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = best[i] < 0 ? -1.0 : table.at(request, best[i]);
    });
  });
}

}  // namespace

void add_topk_rows_cases(CaseList& list) {
  for (int64_t rows : {0, 1, 2, 3, 9}) {
    add_plain(list, {rows, 300, 64});
    add_ragged(list, {rows, 300, 64, Scores::kCoarse, Starts::kGiven});
    add_paged(list, {rows, 300, 64}, 1);
  }
  for (int64_t columns : {0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 997})
    add_plain(list, {8, columns, 3, Scores::kCoarse});
  for (int64_t k : {1, 2, 3, 15, 16, 17, 127})
    add_plain(list, {8, 130, k, Scores::kNormal, Starts::kGiven});
  // From 8,192 on a sample of the row bounds the candidates.
  for (Scores kind : {Scores::kNormal, Scores::kCoarse, Scores::kEqual, Scores::kAscending,
                      Scores::kDescending, Scores::kHidden, Scores::kExtremes, Scores::kMasked}) {
    add_plain(list, {3, 500, 100, kind, Starts::kAbsent, true});
    add_plain(list, {2, 9001, 2048, kind, Starts::kAbsent, true});
    add_plain(list, {2, 20011, 512, kind, Starts::kGiven, true});
  }
  // A block of a GPU holds 8,192 scores; longer rows are shared out over the blocks of a cluster.
  for (int64_t columns : {8189, 8190, 8191, 8192, 8193})
    add_plain(list, {2, columns, 512, Scores::kNormal, Starts::kAbsent, true});
  for (Scores kind : {Scores::kNormal, Scores::kCoarse, Scores::kHidden, Scores::kMasked})
    add_plain(list, {1, 40009, 2048, kind, Starts::kGiven, true});
  add_plain(list, {2, 70001, 1024, Scores::kNormal, Starts::kAbsent, true});
  // Clusters hold up to 131,072; longer rows, and many rows, are sampled.
  for (Scores kind : {Scores::kNormal, Scores::kCoarse, Scores::kEqual, Scores::kAscending,
                      Scores::kDescending, Scores::kHidden, Scores::kExtremes, Scores::kMasked})
    add_plain(list, {1, 131101, 2048, kind, Starts::kGiven, true});
  add_plain(list, {1, 131069, 2048, Scores::kCoarse, Starts::kGiven, true});
  add_plain(list, {1, 131072, 4096, Scores::kNormal, Starts::kAbsent, true});
  add_plain(list, {600, 9001, 64, Scores::kNormal, Starts::kAbsent, true});
  add_plain(list, {9, 16384, 1024});
  add_ragged(list, {5, 8200, 2048});
  add_ragged(list, {5, 8200, 512, Scores::kMasked, Starts::kGiven});
  add_paged(list, {9, 4096, 2048}, 1);
  add_paged(list, {9, 777, 50, Scores::kCoarse}, 4);
  add_paged(list, {9, 777, 50, Scores::kNormal, Starts::kGiven}, 1);
  add_paged(list, {9, 777, 50, Scores::kExtremes, Starts::kGiven}, 3);

  // DeepSeek-V3.2: decode over 64 Ki tokens of context, prefill over 16 Ki.
  const Shape decode{128, 65536, 2048, Scores::kNormal, Starts::kAbsent, true};
  const Shape prefill{4096, 16384, 2048, Scores::kNormal, Starts::kAbsent, true};
  add_plain(list, decode, "decode");
  add_plain(list, prefill, "prefill");
  add_plain(list, {1, 131072, 2048, Scores::kNormal, Starts::kAbsent, true}, "decode");
  add_paged(list, decode, 1, "decode");
  add_ragged(list, prefill, "prefill");
  // DeepSeek-V4: 128 Ki tokens of context are 32 Ki keys, of which Flash takes 512 and Pro 1,024.
  for (int64_t k : {512, 1024}) {
    const auto keys_of = [&](int64_t rows) {
      return Shape{rows, 32768, k, Scores::kNormal, Starts::kAbsent, true};
    };
    add_plain(list, keys_of(1), "decode");
    add_paged(list, keys_of(128), 1, "decode");
    add_plain(list, keys_of(1024), "prefill");
  }
  // Every token sees all keys, as a dry run counts them.
  list.serve_calls("topk_rows", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_plain_case(one, spec,
                   {.rows = call.dim("scores", 0),
                    .columns = call.dim("scores", 1),
                    .k = call.dim("ids", 1),
                    .starts = call.has("row_starts") ? Starts::kGiven : Starts::kAbsent,
                    .whole_rows = true,
                    .gaps = false});
  });
}

}  // namespace fathom
