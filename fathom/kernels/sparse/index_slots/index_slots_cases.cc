#include <algorithm>
#include <cmath>
#include <functional>

#include "fathom/kernels/conformance/call_tokens.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sparse/index_slots/index_slots.h"

namespace fathom {
namespace {

void add_visible(CaseList& list, int64_t tokens, int64_t per_row, std::string_view phase = "") {
  const CaseSpec spec{.name = str_cat("t", tokens, "_r", per_row),
                      .op = "visible_rows",
                      .bench = !phase.empty(),
                      .phase = std::string(phase),
                      .columns = str_cat("M=", tokens)};
  add_case<VisibleRows>(list, spec, [=](CaseBuilder<VisibleRows>& c) {
    c.set_batch(tokens);
    const RowPlacement own{.row_gap = 0, .rows_per_batch = 1};
    const Tensor positions = c.input({tokens}, Format::kI32, {}, own);
    positions.fill([=](int64_t t) { return t * 37 % (5 * per_row + 3); });
    const Tensor rows = c.output({tokens}, Format::kI32, own);
    c.bind([=](const Binding& at) {
      return VisibleRows::Args{
          .positions = at(positions), .rows = at(rows), .tokens_per_row = per_row};
    });
    c.expect_rows(rows, gates::exact(), [=](int64_t /*row*/, std::span<double> out) {
      for (size_t t = 0; t < out.size(); ++t)
        out[t] =
            std::floor((positions[static_cast<int64_t>(t)] + 1) / static_cast<double>(per_row));
    });
  });
}

/// Requests that own `queries` tokens each, the first of several none; `behind` tokens of nobody.
struct Owners {
  int64_t requests;
  int64_t queries;
  int64_t behind = 0;

  int64_t owners() const { return requests > 1 ? requests - 1 : requests; }

  int64_t tokens() const { return owners() * queries + behind; }

  /// The request of token t; `requests` for a token of nobody.
  int64_t request(int64_t t) const {
    const int64_t nth = queries == 0 ? owners() : std::min(t / queries, owners());
    return requests > 1 ? nth + 1 : nth;
  }

  void fill_begins(const Tensor& begins) const {
    begins.fill([r = *this](int64_t b) {
      return r.queries * (r.requests > 1 ? std::max<int64_t>(b - 1, 0) : b);
    });
  }

  /// A case of slots of `width` entries a token; `sizes` are the rest of its name.
  CaseSpec spec(std::string_view op,
                std::string_view sizes,
                int64_t width,
                std::string_view phase) const {
    return {.name = str_cat("b", requests, "_q", queries, "_k", width, sizes,
                            behind > 0 ? "_padded" : ""),
            .op = std::string(op),
            .bench = !phase.empty(),
            .phase = std::string(phase),
            .columns = str_cat("M=", tokens(), ";B=", requests, ";topk=", width)};
  }
};

void fill_table(const Tensor& table) {
  table.fill([](int64_t i) { return i * 31 % 1009; });
}

struct Chosen {
  Owners of;
  int64_t k;
  int64_t pages;
  int64_t page_rows;
  bool trees = false;
};

/// The rows that a token of a tree sees: none of the last seven, but for two of these.
std::vector<int64_t> path_of(const Chosen& s, int64_t t) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < s.pages * s.page_rows; ++row) {
    const int64_t in_tree = row - (s.pages * s.page_rows - 7);
    if (in_tree < 0 || in_tree == t % 3 || in_tree == 3 + t % 4) rows.push_back(row);
  }
  return rows;
}

void add_slots(CaseList& list, const Chosen& s, std::string_view phase = "") {
  const CaseSpec spec = s.of.spec(
      "index_slots", str_cat("_p", s.pages, "x", s.page_rows, s.trees ? "_trees" : ""), s.k, phase);
  add_case<IndexSlots>(list, spec, [=](CaseBuilder<IndexSlots>& c) {
    const Tensor ids = c.input({s.of.tokens(), s.k}, Format::kI32, {}, {.row_gap = 3});
    ids.fill([=](int64_t i) {
      const int64_t rows = s.pages * s.page_rows - (s.trees ? 5 : 0);
      return i % 7 == 5 ? -1 : i * 7919 % std::max<int64_t>(rows, 1);
    });
    Tensor lengths;
    Tensor masks;
    if (s.trees) {
      lengths = c.input({s.of.tokens()}, Format::kI32);
      lengths.fill([=](int64_t t) { return std::ssize(path_of(s, t)); });
      masks = c.input({s.of.tokens()}, Format::kI64);
      masks.fill([](int64_t t) { return (1 << t % 3) + (8 << t % 4); });
    }
    const Tensor table = c.input({s.of.requests, s.pages}, Format::kI32, {}, {.row_gap = 2});
    fill_table(table);
    const Tensor begins = c.input({s.of.requests + 1}, Format::kI32);
    s.of.fill_begins(begins);
    const Tensor slots = c.output({s.of.tokens(), s.k}, Format::kI32, {.row_gap = 1});
    c.bind([=](const Binding& at) {
      return IndexSlots::Args{.ids = at(ids),
                              .block_table = at(table),
                              .q_offsets = at(begins),
                              .lengths = at(lengths),
                              .tree_masks = at(masks),
                              .slots = at(slots),
                              .page_rows = s.page_rows};
    });
    c.expect_rows(slots, gates::exact(), [=](int64_t t, std::span<double> out) {
      const int64_t b = s.of.request(t);
      const std::vector<int64_t> path = s.trees ? path_of(s, t) : std::vector<int64_t>{};
      for (int64_t j = 0; j < s.k; ++j) {
        double id = ids.at(t, j);
        if (s.trees && id >= 0) id = static_cast<double>(path[static_cast<size_t>(id)]);
        const double page = std::floor(id / static_cast<double>(s.page_rows));
        out[static_cast<size_t>(j)] = id < 0 || b >= s.of.requests
                                          ? -1
                                          : id + (table.at(b, static_cast<int64_t>(page)) - page) *
                                                     static_cast<double>(s.page_rows);
      }
    });
  });
}

struct Rows {
  Owners of;
  int64_t width;      ///< entries of slots a token
  int64_t page_rows;  ///< of a page, or of a ring
  int64_t per_row = 1;
  bool trees = false;

  CaseSpec spec(std::string_view op, std::string_view phase) const {
    return of.spec(op, str_cat("_s", page_rows, "_r", per_row, trees ? "_trees" : ""), width,
                   phase);
  }

  /// Of token t of a tree: of the rows behind the place `begin` every second one, or all but that,
  /// as many as it sees there and no more than eleven.
  int64_t mask_of(int64_t t, int64_t seen) const {
    const int64_t bits = std::min<int64_t>(t % 12, seen);
    int64_t mask = 0;
    for (int64_t i = 0; i < bits; ++i)
      mask |= int64_t{1} << (t % 2 == 0 ? 2 * i : i + 1);
    return mask;
  }

  /// Where the last but `back` of the rows that it sees lies.
  int64_t place_of(int64_t t, int64_t seen, int64_t back) const {
    const int64_t row = seen - 1 - back;
    const int64_t begin = seen - std::min<int64_t>(t % 12, seen);
    if (!trees || row < begin) return row;
    return t % 2 == 0 ? begin + 2 * (row - begin) : row + 1;
  }

  Tensor masks(CaseData& c, const std::function<int64_t(int64_t)>& seen) const {
    if (!trees) return {};
    const Tensor tensor = c.input({of.tokens()}, Format::kI64);
    tensor.fill([&](int64_t t) { return mask_of(t, seen(t)); });
    return tensor;
  }
};

void add_visible_slots(CaseList& list, const Rows& s, std::string_view phase = "") {
  add_case<VisibleSlots>(list, s.spec("visible_slots", phase), [=](CaseBuilder<VisibleSlots>& c) {
    const int64_t pages = (s.width + (s.trees ? 12 : 0) + s.page_rows - 1) / s.page_rows;
    const Tensor positions = c.input({s.of.tokens()}, Format::kI32);
    positions.fill([=](int64_t t) { return t * 7919 % ((s.width + 1) * s.per_row - 1); });
    const Tensor table = c.input({s.of.requests, pages}, Format::kI32, {}, {.row_gap = 2});
    fill_table(table);
    const Tensor begins = c.input({s.of.requests + 1}, Format::kI32);
    s.of.fill_begins(begins);
    const auto seen = [=](int64_t t) { return static_cast<int64_t>(positions[t] + 1) / s.per_row; };
    const Tensor masks = s.masks(c, seen);
    const Tensor slots = c.output({s.of.tokens(), s.width}, Format::kI32, {.row_gap = 1});
    c.bind([=](const Binding& at) {
      return VisibleSlots::Args{.positions = at(positions),
                                .block_table = at(table),
                                .q_offsets = at(begins),
                                .tree_masks = at(masks),
                                .slots = at(slots),
                                .page_rows = s.page_rows,
                                .tokens_per_row = s.per_row};
    });
    c.expect_rows(slots, gates::exact(), [=](int64_t t, std::span<double> out) {
      const int64_t b = s.of.request(t);
      const int64_t rows = b < s.of.requests ? seen(t) : 0;
      for (int64_t j = 0; j < s.width; ++j) {
        const int64_t row = j < rows ? s.place_of(t, rows, rows - 1 - j) : -1;
        out[static_cast<size_t>(j)] =
            row < 0 ? -1
                    : table.at(b, row / s.page_rows) * static_cast<double>(s.page_rows) +
                          static_cast<double>(row % s.page_rows);
      }
    });
  });
}

/// page_rows 0: rows of the call's tokens in place of rings.
void add_ring(CaseList& list, const Rows& s, std::string_view phase = "") {
  add_case<RingSlots>(list, s.spec("ring_slots", phase), [=](CaseBuilder<RingSlots>& c) {
    const Tensor positions = c.input({s.of.tokens()}, Format::kI32);
    positions.fill([=](int64_t t) { return t * 61 % (3 * s.page_rows + 100); });
    const Tensor rings = s.page_rows > 0 ? c.input({s.of.requests}, Format::kI32) : Tensor{};
    if (rings.present()) rings.fill([](int64_t b) { return b * 5 % 7; });
    const Tensor begins = c.input({s.of.requests + 1}, Format::kI32);
    s.of.fill_begins(begins);
    const auto seen = [=](int64_t t) { return static_cast<int64_t>(positions[t]) + 1; };
    const Tensor masks = s.masks(c, seen);
    const Tensor slots = c.output({s.of.tokens(), s.width}, Format::kI32, {.row_gap = 1});
    c.bind([=](const Binding& at) {
      return RingSlots::Args{.positions = at(positions),
                             .request_slots = at(rings),
                             .q_offsets = at(begins),
                             .tree_masks = at(masks),
                             .slots = at(slots),
                             .ring_rows = s.page_rows};
    });
    c.expect_rows(slots, gates::exact(), [=](int64_t t, std::span<double> out) {
      const int64_t b = s.of.request(t);
      // From the query's own token backwards, as the window is defined.
      for (int64_t back = 0; back < s.width; ++back) {
        if (!rings.present()) {
          const bool own = b < s.of.requests && t >= back && s.of.request(t - back) == b;
          out[static_cast<size_t>(s.width - 1 - back)] = own ? static_cast<double>(t - back) : -1;
          continue;
        }
        const int64_t token = back < seen(t) ? s.place_of(t, seen(t), back) : -1;
        out[static_cast<size_t>(s.width - 1 - back)] =
            token < 0 || b >= s.of.requests ? -1
                                            : rings[b] * static_cast<double>(s.page_rows) +
                                                  static_cast<double>(token % s.page_rows);
      }
    });
  });
}

// ---- recorded calls ----

/// Of V4's indexer; V3.2 has a key for each token.
constexpr int64_t kTokensPerIndexKey = 4;

Tensor positions_of(CaseData& c, const CallTokens& of) {
  const Tensor positions = c.input({of.tokens}, Format::kI32);
  positions.fill([&](int64_t t) { return of.position(t); });
  return positions;
}

Tensor begins_of(CaseData& c, const CallTokens& of) {
  const Tensor begins = c.input({of.requests + 1}, Format::kI32);
  begins.fill([&](int64_t b) { return of.first(b); });
  return begins;
}

/// Each request has pages of its own.
Tensor table_of(CaseData& c, int64_t requests, int64_t pages) {
  const Tensor table = c.input({requests, pages}, Format::kI32);
  table.fill([&](int64_t i) { return scattered_page(i, requests * pages); });
  return table;
}

void add_visible_rows_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  const CallTokens of = tokens_of(call, spec, call.dim("positions", 0));
  const int64_t per_row = call.context().compressed ? kTokensPerIndexKey : 1;
  add_case<VisibleRows>(one, spec, [=](CaseBuilder<VisibleRows>& c) {
    const Tensor positions = positions_of(c, of);
    const Tensor rows = c.output({of.tokens}, Format::kI32);
    c.bind([=](const Binding& at) {
      return VisibleRows::Args{
          .positions = at(positions), .rows = at(rows), .tokens_per_row = per_row};
    });
    c.expect_each(rows, gates::exact(), [=](int64_t /*row*/, int64_t t) {
      return std::floor((positions[t] + 1) / static_cast<double>(per_row));
    });
  });
}

void add_index_slots_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  const int64_t pages = call.dim("block_table", 1);
  const int64_t page_rows = call.context().page_rows;
  const int64_t k = call.dim("ids", 1);
  const CallTokens of = tokens_of(call, spec, call.dim("ids", 0), call.dim("block_table", 0));
  add_case<IndexSlots>(one, spec, [=](CaseBuilder<IndexSlots>& c) {
    const Tensor ids = c.input({of.tokens, k}, Format::kI32);
    ids.fill([&](int64_t i) { return chosen_row(c.rng(), i % k, k, pages * page_rows); });
    const Tensor table = table_of(c, of.requests, pages);
    const Tensor begins = begins_of(c, of);
    const Tensor slots = c.output({of.tokens, k}, Format::kI32);
    c.bind([=](const Binding& at) {
      return IndexSlots::Args{.ids = at(ids),
                              .block_table = at(table),
                              .q_offsets = at(begins),
                              .slots = at(slots),
                              .page_rows = page_rows};
    });
    c.expect_each(slots, gates::exact(), [=](int64_t t, int64_t j) {
      const auto id = static_cast<int64_t>(ids.at(t, j));
      if (id < 0) return -1.0;
      return table.at(of.request(t), id / page_rows) * static_cast<double>(page_rows) +
             static_cast<double>(id % page_rows);
    });
  });
}

void add_visible_slots_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  const int64_t pages = call.dim("block_table", 1);
  const int64_t page_rows = call.context().page_rows;
  const int64_t width = call.dim("slots", 1);
  const CallTokens of = tokens_of(call, spec, call.dim("slots", 0), call.dim("block_table", 0));
  // The list of the last token is full.
  const int64_t per_row = std::max<int64_t>(of.keys / std::max<int64_t>(width, 1), 1);
  add_case<VisibleSlots>(one, spec, [=](CaseBuilder<VisibleSlots>& c) {
    const Tensor positions = c.input({of.tokens}, Format::kI32);
    const int64_t most = std::min(width, pages * page_rows);
    positions.fill([&](int64_t t) { return std::min(of.position(t), (most + 1) * per_row - 2); });
    const Tensor table = table_of(c, of.requests, pages);
    const Tensor begins = begins_of(c, of);
    const Tensor slots = c.output({of.tokens, width}, Format::kI32);
    c.bind([=](const Binding& at) {
      return VisibleSlots::Args{.positions = at(positions),
                                .block_table = at(table),
                                .q_offsets = at(begins),
                                .slots = at(slots),
                                .page_rows = page_rows,
                                .tokens_per_row = per_row};
    });
    c.expect_each(slots, gates::exact(), [=](int64_t t, int64_t j) {
      if (j >= (static_cast<int64_t>(positions[t]) + 1) / per_row) return -1.0;
      return table.at(of.request(t), j / page_rows) * static_cast<double>(page_rows) +
             static_cast<double>(j % page_rows);
    });
  });
}

void add_ring_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  const int64_t width = call.dim("slots", 1);
  const int64_t ring_rows = std::max(call.context().ring_rows, width);
  const CallTokens of = tokens_of(call, spec, call.dim("slots", 0), call.dim("q_offsets", 0) - 1);
  add_case<RingSlots>(one, spec, [=](CaseBuilder<RingSlots>& c) {
    const Tensor positions = positions_of(c, of);
    const Tensor rings =
        call.has("request_slots") ? c.input({of.requests}, Format::kI32) : Tensor{};
    if (rings.present()) rings.fill([&](int64_t b) { return scattered_page(b, of.requests); });
    const Tensor begins = begins_of(c, of);
    const Tensor slots = c.output({of.tokens, width}, Format::kI32);
    c.bind([=](const Binding& at) {
      return RingSlots::Args{.positions = at(positions),
                             .request_slots = at(rings),
                             .q_offsets = at(begins),
                             .slots = at(slots),
                             .ring_rows = ring_rows};
    });
    c.expect_each(slots, gates::exact(), [=](int64_t t, int64_t j) {
      if (!rings.present()) {
        const int64_t row = t - (width - 1 - j);
        return row >= of.first(of.request(t)) ? static_cast<double>(row) : -1.0;
      }
      const int64_t token = static_cast<int64_t>(positions[t]) - (width - 1 - j);
      if (token < 0) return -1.0;
      return rings[of.request(t)] * static_cast<double>(ring_rows) +
             static_cast<double>(token % ring_rows);
    });
  });
}

}  // namespace

void add_index_slots_cases(CaseList& list) {
  for (int64_t tokens : {0, 1, 9}) {
    for (int64_t per_row : {1, 4, 128})
      add_visible(list, tokens, per_row);
  }
  for (const Chosen& chosen :
       {Chosen{{1, 1}, 5, 3, 16}, Chosen{{1, 7}, 64, 5, 1}, Chosen{{3, 4}, 33, 9, 64},
        Chosen{{4, 1, 3}, 16, 2, 2}, Chosen{{1, 0, 2}, 4, 1, 8}, Chosen{{2, 3}, 1, 4, 7},
        Chosen{{3, 9, 1}, 21, 3, 16, true}, Chosen{{2, 5}, 512, 6, 64, true}})
    add_slots(list, chosen);
  for (const Rows& rows :
       {Rows{{1, 1}, 5, 2, 128}, Rows{{3, 4, 2}, 33, 2, 128}, Rows{{2, 9}, 64, 64, 4},
        Rows{{1, 0, 3}, 4, 2, 128}, Rows{{4, 2}, 7, 1, 1}, Rows{{3, 13, 1}, 33, 2, 128, true},
        Rows{{2, 26}, 64, 16, 4, true}})
    add_visible_slots(list, rows);
  for (const Rows& rows : {Rows{{1, 1}, 8, 24}, Rows{{3, 40}, 8, 8}, Rows{{2, 9, 2}, 128, 256, 1},
                           Rows{{1, 0, 3}, 4, 8, 1}, Rows{{4, 2}, 1, 1}, Rows{{1, 1}, 8, 0},
                           Rows{{3, 40, 2}, 8, 0}, Rows{{2, 9}, 7, 0}, Rows{{1, 0, 3}, 4, 0},
                           Rows{{3, 26, 1}, 8, 32, 1, true}, Rows{{2, 13}, 128, 256, 1, true}})
    add_ring(list, rows);

  // DeepSeek-V3.2 and V4: 128 Ki tokens of context.
  add_visible(list, 128, 1, "decode");
  add_visible(list, 4096, 4, "prefill");
  add_slots(list, {{129, 1}, 2048, 2048, 64}, "decode");
  add_slots(list, {{1, 1024}, 512, 512, 64}, "prefill");
  add_visible_slots(list, {{129, 1}, 1024, 2, 128}, "decode");
  add_visible_slots(list, {{1, 512}, 1024, 2, 128}, "prefill");
  add_ring(list, {{129, 1}, 128, 256}, "decode");
  add_ring(list, {{1, 512}, 128, 256}, "prefill");
  list.serve_calls("visible_rows", add_visible_rows_call);
  list.serve_calls("index_slots", add_index_slots_call);
  list.serve_calls("visible_slots", add_visible_slots_call);
  list.serve_calls("ring_slots", add_ring_call);
}

}  // namespace fathom
