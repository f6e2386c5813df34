#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "fathom/kernels/conformance/call_tokens.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sparse/index_logits/index_logits.h"
#include "fathom/kernels/sparse/index_logits/index_logits_case_rows.h"

namespace fathom {
namespace {

using index_logits::make_rows;
using index_logits::random_keys;
using index_logits::Rows;
using index_logits::RowScales;
using index_logits::spoil_row;

constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// sum over h of w_h relu(q_h . k); w has a factor for each head.
template <class Weight>
double exact_logit(const float* q, const float* k, int64_t heads, int64_t width, Weight w) {
  double logit = 0;
  for (int64_t h = 0; h < heads; ++h) {
    double score = 0;
    for (int64_t d = 0; d < width; ++d)
      score += double{q[h * width + d]} * double{k[d]};
    logit += w(h) * std::max(score, 0.0);
  }
  return logit;
}

/// Gate B: |x-y|^2 / (|x|^2 + |y|^2) of logits of normal values, from the rounding of both sides. A
/// dot product is as exact as its numbers: bf16 1.3e-6, e4m3 3e-4, e2m1 7e-3; twice that is
/// allowed.
double full_precision_limit(Format q, Format k) {
  const auto of = [](Format format) {
    if (format == Format::kU8) return 1.4e-2;
    if (format == Format::kE4m3) return 6e-4;
    return format == Format::kBf16 ? 2.6e-6 : 1e-11;
  };
  return of(q) + of(k);
}

/// Gate A. FP8 tensor cores keep 13 bits behind the largest product of a sum and behind the sum
/// itself. With e4m3 on both sides that is 1.0e-4 to 1.6e-4 of logits of normal values (a public
/// kernel of the same instruction, measured on an H200, against float32), of which this allows 2.5
/// times the most. Products and sums of e2m1 have fewer bits than that.
Gate logit_gate(Format q, Format k, int64_t width) {
  const bool codes = q == Format::kE4m3 && k == Format::kE4m3 && width == 128;
  return codes ? Gate{.rel_l2 = 4e-4} : gates::gemm(Format::kF32);
}

/// What both contracts have: queries, weights of heads, logits.
struct Queries {
  Rows q{};
  Tensor w{};
  int64_t heads = 0;

  /// Of the drawn head, which the scale of an e4m3 query multiplies in `w`.
  double drawn_weight(int64_t t, int64_t h) const { return w.at(t, h) / q.scale(t * heads + h); }
};

template <class Builder>
Queries make_queries(Builder& c,
                     int64_t tokens,
                     int64_t heads,
                     int64_t width,
                     Format format,
                     const RowPlacement& rows) {
  Queries out{.heads = heads};
  out.q = make_rows(c, {tokens, heads}, width, format, RowScales::kElsewhere, rows);
  out.w = c.input({tokens, heads}, Format::kF32, {}, rows);
  out.w.fill([&](int64_t i) { return out.w[i] * out.q.scale(i); });
  return out;
}

// ---- pages ----

struct PagedShape {
  CaseSpec spec;
  int64_t requests;
  int64_t per_request = 1;  ///< tokens; more than one: an empty request and padding come with them
  int64_t keys = 200;       ///< that the last token of the longest request sees
  int64_t heads = 4;
  int64_t width = 64;
  Format q = Format::kBf16;
  Format k = Format::kBf16;
  int64_t page_size = 64;
  int64_t columns = 0;  ///< of the logits; 0: as many as keys
  int64_t gap = 0;
  int64_t tokens_per_key = 1;  ///< what a token sees: floor((p + 1) / that)
  int64_t tree_rows = 0;       ///< the last keys of each request, of a tree of which tokens are
};

/// Row `row` of the tree of request r follows any earlier one, or (-1) what lies before the tree.
int64_t parent_of(int64_t r, int64_t row) {
  return (row * 5 + r) % (row + 1) - 1;
}

/// Places of the keys that query i of request r sees in a tree.
std::vector<int64_t> places_in_tree(const PagedShape& s, int64_t r, int64_t i) {
  const int64_t keys = s.keys - r * 37;
  std::vector<int64_t> places;
  for (int64_t row = s.tree_rows - s.per_request + i; row >= 0; row = parent_of(r, row))
    places.insert(places.begin(), keys - s.tree_rows + row);
  for (int64_t place = keys - s.tree_rows - 1; place >= 0; --place)
    places.insert(places.begin(), place);
  return places;
}

/// Keys that query i of request r sees: the newest token of request 0 sees `keys`.
int64_t visible(const PagedShape& s, int64_t r, int64_t i) {
  const int64_t shorter = s.spec.bench ? 0 : r * 37;
  const int64_t newest = std::max<int64_t>(s.keys * s.tokens_per_key - shorter, 0);
  return std::max<int64_t>(newest - (s.per_request - 1 - i), 0) / s.tokens_per_key;
}

void add_paged(CaseList& list, const PagedShape& s) {
  add_case<IndexLogitsPaged>(list, s.spec, [s](CaseBuilder<IndexLogitsPaged>& c) {
    // One token a request may be cut; else a request without tokens stands in the middle, and
    // tokens of no request at the end.
    const bool cut = s.per_request == 1;
    if (cut) c.set_batch(s.requests);
    const int64_t B = cut ? s.requests : s.requests + 1;
    const int64_t empty = cut ? -1 : s.requests / 2;
    const int64_t T = s.requests * s.per_request + (cut ? 0 : 2);
    const int64_t L = s.columns > 0 ? s.columns : s.keys;
    const int64_t S = s.page_size;
    const int64_t P = ceil_div(s.keys, S) + 1;
    const int64_t M = B * P + 3 + ((B * P + 3) % 5 == 0 ? 1 : 0);  // 5 has no factor with it
    const int64_t per_batch = cut ? 1 : 0;
    const RowPlacement rows{.row_gap = s.gap, .rows_per_batch = per_batch};
    const RowPlacement own{.rows_per_batch = per_batch};
    const Queries queries = make_queries(c, T, s.heads, s.width, s.q, rows);
    const Rows keys = make_rows(c, {M, S}, s.width, s.k, RowScales::kInOperand, {.row_gap = s.gap});

    const auto request_of = [=](int64_t t) {
      const int64_t r = t / s.per_request;
      return empty >= 0 && r >= empty ? r + 1 : r;
    };
    const auto places = std::make_shared<std::vector<std::vector<int64_t>>>();  // in trees
    for (int64_t t = 0; s.tree_rows > 0 && t < s.requests * s.per_request; ++t)
      places->push_back(places_in_tree(s, t / s.per_request, t % s.per_request));
    const auto place_of = [=](int64_t t, int64_t j) {
      return s.tree_rows > 0 ? (*places)[static_cast<size_t>(t)][static_cast<size_t>(j)] : j;
    };
    const auto length_of = [=](int64_t t) {
      if (t >= s.requests * s.per_request) return int64_t{0};
      if (s.tree_rows > 0) return std::ssize((*places)[static_cast<size_t>(t)]);
      return visible(s, t / s.per_request, t % s.per_request);
    };
    const Tensor lengths = c.input({T}, Format::kI32, {}, own);
    lengths.fill(length_of);
    Tensor masks;
    if (s.tree_rows > 0) masks = c.input({T}, Format::kI64, {}, own);
    for (size_t t = 0; t < places->size(); ++t) {
      const int64_t begin = s.keys - static_cast<int64_t>(t) / s.per_request * 37 - s.tree_rows;
      double mask = 0;
      for (const int64_t place : (*places)[t])
        mask += place < begin ? 0 : std::ldexp(1.0, static_cast<int>(place - begin));
      masks.set(static_cast<int64_t>(t), mask);
    }
    const Tensor offsets = c.input({B + 1}, Format::kI32);
    offsets.fill([=](int64_t b) { return (empty >= 0 && b > empty ? b - 1 : b) * s.per_request; });
    const auto page_of = [=](int64_t b, int64_t i) { return (b * P + i) * 5 % M; };
    std::vector<int64_t> used(static_cast<size_t>(B), 0);
    for (int64_t t = 0; t < T; ++t) {
      auto& most = used[static_cast<size_t>(std::min(request_of(t), B - 1))];
      if (length_of(t) > 0) most = std::max(most, place_of(t, length_of(t) - 1) + 1);
    }
    const Tensor table =
        c.input({B, P}, Format::kI32, {}, {.row_gap = 1, .rows_per_batch = per_batch});
    table.fill([&](int64_t i) {
      const bool in_use = i % P * S < used[static_cast<size_t>(i / P)];
      return in_use ? page_of(i / P, i % P) : int64_t{0x7B7B7B7B};
    });
    for (int64_t b = 0; !s.spec.bench && b < B; ++b) {
      for (int64_t j = used[static_cast<size_t>(b)]; j < P * S; ++j)
        spoil_row(keys, page_of(b, j / S) * S + j % S);
    }
    const Tensor logits = c.output({T, L}, Format::kF32, rows);
    c.bind([=](const Binding& at) {
      View q_offsets = at(offsets);
      if (cut) q_offsets = slice_rows(q_offsets, 0, at.batch_rows() + 1);
      return IndexLogitsPaged::Args{.q = at(queries.q.stored),
                                    .q_scales = at(queries.q.scales),
                                    .w = at(queries.w),
                                    .keys = at(keys.stored),
                                    .key_scales = at(keys.scales),
                                    .block_table = at(table),
                                    .q_offsets = q_offsets,
                                    .lengths = at(lengths),
                                    .tree_masks = at(masks),
                                    .logits = at(logits)};
    });
    const auto key_row = [=](int64_t t, int64_t j) {
      const int64_t place = place_of(t, j);
      return page_of(request_of(t), place / S) * S + place % S;
    };
    c.expect_each(logits, logit_gate(s.q, s.k, s.width), [=](int64_t t, int64_t j) {
      if (j >= length_of(t)) return kHidden;
      const int64_t row = key_row(t, j);
      return keys.scale(row) * exact_logit(queries.q.row(t * s.heads), keys.row(row), s.heads,
                                           s.width, [&](int64_t h) { return queries.w.at(t, h); });
    });
    if (T * L < 4096) return;
    const Gate gate{.diff = full_precision_limit(s.q, s.k)};
    c.expect_full_precision(logits, gate, [=](int64_t t, int64_t j) {
      if (j >= length_of(t)) return kHidden;
      return exact_logit(queries.q.drawn_row(t * s.heads), keys.drawn_row(key_row(t, j)), s.heads,
                         s.width, [&](int64_t h) { return queries.drawn_weight(t, h); });
    });
  });
}

/// Requests of equal lengths, of which each token sees all keys, as a dry run counts them.
void add_paged_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  const CallTokens of = tokens_of(call, spec, call.dim("q", 0), call.dim("block_table", 0));
  const int64_t heads = call.dim("q", 1);
  const Format q = call.format("q");
  const Format k = call.format("keys");
  const int64_t width = index_width(k, call.dim("keys", 2));
  const int64_t M = call.dim("keys", 0);
  const int64_t S = call.dim("keys", 1);
  const int64_t P = call.dim("block_table", 1);
  const int64_t L = call.dim("logits", 1);
  const int64_t seen = std::min(L, P * S);
  add_case<IndexLogitsPaged>(one, spec, [=](CaseBuilder<IndexLogitsPaged>& c) {
    const Queries queries = make_queries(c, of.tokens, heads, width, q, {});
    const Rows keys = random_keys(c, M, S, width, k);
    const Tensor table = c.input({of.requests, P}, Format::kI32);
    const int64_t used = ceil_div(seen, S);
    const auto page_of = [=](int64_t b, int64_t i) { return scattered_page(b * used + i, M); };
    table.fill([&](int64_t i) { return i % P < used ? page_of(i / P, i % P) : 0; });
    const Tensor offsets = c.input({of.requests + 1}, Format::kI32);
    offsets.fill([&](int64_t b) { return of.first(b); });
    const Tensor lengths = c.input({of.tokens}, Format::kI32);
    lengths.fill([&](int64_t) { return seen; });
    const Tensor logits = c.output({of.tokens, L}, Format::kF32);
    c.bind([=](const Binding& at) {
      return IndexLogitsPaged::Args{.q = at(queries.q.stored),
                                    .q_scales = at(queries.q.scales),
                                    .w = at(queries.w),
                                    .keys = at(keys.stored),
                                    .key_scales = at(keys.scales),
                                    .block_table = at(table),
                                    .q_offsets = at(offsets),
                                    .lengths = at(lengths),
                                    .logits = at(logits)};
    });
    c.expect_each(logits, logit_gate(q, k, width), [=](int64_t t, int64_t j) {
      if (j >= seen) return kHidden;
      const int64_t row = page_of(of.request(t), j / S) * S + j % S;
      return keys.scale(row) * exact_logit(queries.q.row(t * heads), keys.row(row), heads, width,
                                           [&](int64_t h) { return queries.w.at(t, h); });
    });
  });
}

// ---- one tensor ----

struct RaggedShape {
  CaseSpec spec;
  int64_t tokens;
  int64_t keys;
  int64_t heads = 4;
  int64_t width = 64;
  Format q = Format::kBf16;
  Format k = Format::kBf16;
  int64_t gap = 0;
};

void add_ragged(CaseList& list, const RaggedShape& s) {
  add_case<IndexLogitsRagged>(list, s.spec, [s](CaseBuilder<IndexLogitsRagged>& c) {
    c.set_batch(s.tokens);
    const RowPlacement rows{.row_gap = s.gap, .rows_per_batch = 1};
    const Queries queries = make_queries(c, s.tokens, s.heads, s.width, s.q, rows);
    const Rows keys =
        make_rows(c, {s.keys}, s.width, s.k, RowScales::kInOperand, {.row_gap = s.gap});
    // Timed: a prompt behind a prefix. Else ranges of all kinds, one of them empty.
    const auto start_of = [=](int64_t t) -> int64_t {
      if (s.spec.bench) return 0;
      return t % 5 == 3 ? -4 : t * 29 % (s.keys / 2 + 1);
    };
    const auto end_of = [=](int64_t t) -> int64_t {
      if (s.spec.bench) return s.keys - s.tokens + t + 1;
      if (t % 5 == 3) return -7;
      return s.keys - t * 13 % (s.keys / 2 + 1);
    };
    const Tensor starts = c.input({s.tokens}, Format::kI32, {}, {.rows_per_batch = 1});
    const Tensor ends = c.input({s.tokens}, Format::kI32, {}, {.rows_per_batch = 1});
    starts.fill(start_of);
    ends.fill(end_of);
    const Tensor logits = c.output({s.tokens, s.keys}, Format::kF32, rows);
    c.bind([=](const Binding& at) {
      return IndexLogitsRagged::Args{.q = at(queries.q.stored),
                                     .q_scales = at(queries.q.scales),
                                     .w = at(queries.w),
                                     .keys = at(keys.stored),
                                     .key_scales = at(keys.scales),
                                     .starts = at(starts),
                                     .ends = at(ends),
                                     .logits = at(logits)};
    });
    const auto sees = [=](int64_t t, int64_t j) { return start_of(t) <= j && j < end_of(t); };
    c.expect_each(logits, logit_gate(s.q, s.k, s.width), [=](int64_t t, int64_t j) {
      if (!sees(t, j)) return kHidden;
      return keys.scale(j) * exact_logit(queries.q.row(t * s.heads), keys.row(j), s.heads, s.width,
                                         [&](int64_t h) { return queries.w.at(t, h); });
    });
    if (s.tokens * s.keys < 4096) return;
    const Gate gate{.diff = full_precision_limit(s.q, s.k)};
    c.expect_full_precision(logits, gate, [=](int64_t t, int64_t j) {
      if (!sees(t, j)) return kHidden;
      return exact_logit(queries.q.drawn_row(t * s.heads), keys.drawn_row(j), s.heads, s.width,
                         [&](int64_t h) { return queries.drawn_weight(t, h); });
    });
  });
}

constexpr Format kFormats[] = {Format::kF32, Format::kBf16, Format::kE4m3, Format::kU8};

void add_small_cases(CaseList& list) {
  for (Format q : kFormats) {
    for (Format k : kFormats) {
      const std::string formats = str_cat(format_name(q), "_", format_name(k));
      add_paged(list, {.spec = {.name = str_cat("b3_q5_", formats)},
                       .requests = 3,
                       .per_request = 5,
                       .keys = 330,
                       .heads = 6,
                       .width = 128,
                       .q = q,
                       .k = k,
                       .gap = 4});
      add_ragged(list, {.spec = {.name = str_cat("t9_l500_", formats)},
                        .tokens = 9,
                        .keys = 500,
                        .heads = 5,
                        .width = q == k ? 64 : 192,
                        .q = q,
                        .k = k,
                        .gap = 4});
    }
  }
  for (int64_t requests : {0, 1, 2, 3, 7}) {
    add_paged(list, {.spec = {.name = str_cat("b", requests)}, .requests = requests, .keys = 131});
  }
  for (int64_t page_size : {1, 2, 16, 48, 128}) {
    add_paged(list, {.spec = {.name = str_cat("page", page_size)},
                     .requests = 2,
                     .per_request = 3,
                     .keys = 150,
                     .k = Format::kE4m3,
                     .page_size = page_size});
  }
  for (int64_t keys : {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513}) {
    add_paged(list, {.spec = {.name = str_cat("keys", keys)}, .requests = 2, .keys = keys});
    add_ragged(list, {.spec = {.name = str_cat("keys", keys)}, .tokens = 3, .keys = keys});
  }
  for (int64_t tokens : {0, 1, 2, 15, 16, 17, 33})
    add_ragged(list, {.spec = {.name = str_cat("t", tokens)}, .tokens = tokens, .keys = 70});
  for (int64_t heads : {0, 1, 2, 3, 4, 5, 8, 64}) {
    add_paged(list, {.spec = {.name = str_cat("h", heads)},
                     .requests = 2,
                     .keys = 70,
                     .heads = heads,
                     .columns = 90});
  }
  // Widths that no vector variant takes, but for 1024.
  for (int64_t width : {1, 2, 3, 31, 32, 96, 100, 1024}) {
    add_ragged(list, {.spec = {.name = str_cat("width", width)},
                      .tokens = 3,
                      .keys = 40,
                      .width = width,
                      .q = Format::kF32});
  }
  add_paged(list, {.spec = {.name = "wide_rows"},
                   .requests = 2,
                   .per_request = 20,
                   .keys = 100,
                   .columns = 1100});
  // The shapes of V4, whose keys stand for four tokens each: some tokens see one key more.
  add_paged(list, {.spec = {.name = "v4_h64_q9"},
                   .requests = 2,
                   .per_request = 9,
                   .keys = 90,
                   .heads = 64,
                   .width = 128,
                   .q = Format::kU8,
                   .k = Format::kU8,
                   .page_size = 16,
                   .tokens_per_key = 4});
}

/// Tokens of trees: one a request, the last level, a whole one with its root; in page and tile.
void add_trees(CaseList& list) {
  for (const Format format : {Format::kF32, Format::kBf16, Format::kE4m3, Format::kU8}) {
    for (const auto& [tokens, rows] : {std::pair{1, 9}, {5, 30}, {21, 20}}) {
      add_paged(list,
                {.spec = {.name = str_cat("tree", rows, "_q", tokens, "_", format_name(format))},
                 .requests = 2,
                 .per_request = tokens,
                 .keys = 140,
                 .width = 128,
                 .q = format,
                 .k = format,
                 .page_size = 16,
                 .tree_rows = rows});
    }
  }
}

/// The codes that tensor cores multiply: 128 channels, up to 64 heads. Tiles of 64 keys, some in a
/// block where there are many; up to four tokens, of one request or of two.
void add_code_cases(CaseList& list) {
  for (Format format : {Format::kE4m3, Format::kU8}) {
    const auto name = [&](std::string_view what) {
      return str_cat("codes_", format_name(format), "_", what);
    };
    const auto paged = [&](std::string_view what, PagedShape s) {
      s.spec.name = name(what);
      s.width = 128;
      s.q = format;
      s.k = format;
      add_paged(list, s);
    };
    paged("h64", {.spec = {}, .requests = 2, .keys = 200, .heads = 64});
    paged("h64_q3", {.spec = {}, .requests = 2, .per_request = 3, .keys = 140, .heads = 64});
    paged("h1_columns", {.spec = {}, .requests = 3, .keys = 65, .heads = 1, .columns = 300});
    paged("page16", {.spec = {}, .requests = 2, .per_request = 2, .keys = 150, .page_size = 16});
    paged("page24", {.spec = {}, .requests = 2, .per_request = 2, .keys = 150, .page_size = 24});
    paged("page1", {.spec = {}, .requests = 1, .keys = 70, .page_size = 1});
    paged("page192",
          {.spec = {}, .requests = 2, .keys = 500, .heads = 32, .page_size = 192, .gap = 16});
    paged("page96", {.spec = {}, .requests = 1, .per_request = 7, .keys = 500, .page_size = 96});
    // Columns that are many, if hidden, give blocks of an H200 sixteen tiles, more than their ring
    // of keys has stages, and rounds enough that it takes them.
    paged("tiles", {.spec = {}, .requests = 50, .keys = 1100, .heads = 3, .columns = 16384});
    paged(
        "tiles_q2",
        {.spec = {}, .requests = 16, .per_request = 2, .keys = 1100, .heads = 2, .columns = 16384});
    // Of five tokens a request, four are a block: most blocks have two requests.
    paged(
        "tiles_q5",
        {.spec = {}, .requests = 12, .per_request = 5, .keys = 700, .heads = 2, .columns = 16384});
    add_ragged(list, {.spec = {.name = name("t9")},
                      .tokens = 9,
                      .keys = 500,
                      .heads = 33,
                      .width = 128,
                      .q = format,
                      .k = format});
    add_ragged(list, {.spec = {.name = name("short")},
                      .tokens = 3,
                      .keys = 40,
                      .heads = 32,
                      .width = 128,
                      .q = format,
                      .k = format});
    add_ragged(list, {.spec = {.name = name("tiles")},
                      .tokens = 330,
                      .keys = 1700,
                      .heads = 2,
                      .width = 128,
                      .q = format,
                      .k = format});
  }
}

struct Timed {
  std::string_view model;
  Format format;
};

CaseSpec timed(const Timed& m, int64_t tokens, int64_t keys, std::string_view phase) {
  return {.name = str_cat(m.model, "_", format_name(m.format), "_t", tokens, "_l", keys),
          .op = "index_logits",
          .bench = true,
          .phase = std::string(phase),
          .columns = str_cat("M=", tokens, ";N=", keys, ";D=128")};
}

/// 64 heads of 128 channels in all three models. A key of V4 stands for four tokens.
void add_timed_cases(CaseList& list) {
  for (const Timed& m : {Timed{"v32", Format::kE4m3}, Timed{"v32", Format::kBf16},
                         Timed{"v32", Format::kF32}, Timed{"v4", Format::kU8}}) {
    const int64_t tokens_per_key = m.model == "v4" ? 4 : 1;
    const auto add = [&](int64_t requests, int64_t per_request, int64_t keys,
                         std::string_view phase) {
      add_paged(list, {.spec = timed(m, requests * per_request, keys, phase),
                       .requests = requests,
                       .per_request = per_request,
                       .keys = keys,
                       .heads = 64,
                       .width = 128,
                       .q = m.format,
                       .k = m.format,
                       .tokens_per_key = tokens_per_key});
    };
    add(1, 1, 32768, "decode");
    add(8, 1, 8192, "decode");
    add(1, 256, 16384, "prefill");
    add_ragged(list, {.spec = timed(m, 256, 16384, "prefill"),
                      .tokens = 256,
                      .keys = 16384,
                      .heads = 64,
                      .width = 128,
                      .q = m.format,
                      .k = m.format});
  }
}

}  // namespace

void add_index_logits_cases(CaseList& list) {
  add_small_cases(list);
  add_code_cases(list);
  add_trees(list);
  add_timed_cases(list);
  list.serve_calls("index_logits_paged", add_paged_call);
}

}  // namespace fathom
