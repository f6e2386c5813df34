#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/paged_attention/paged_attention.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"

namespace fathom {
namespace {

struct Lengths {
  int64_t queries;
  int64_t keys;
};

struct PagedShape {
  CaseSpec spec;
  std::vector<Lengths> requests;
  int64_t n = 4;
  int64_t nk = 4;
  int64_t d = 32;
  int64_t dv = 32;
  int64_t page_size = 16;
  Format q = Format::kBf16;
  Format cache = Format::kBf16;
  float kv_scale = 1.0f;
  double q_scale = 1.0;  ///< large: one key gets nearly all the weight
  Fill values = {};
  bool cut = false;         ///< all requests are alike and form the batch
  int64_t spare_pages = 2;  ///< columns of the block table that nobody's tokens fill
  int64_t num_pages = 0;    ///< of a timed case, whose requests share them; 0: pages of their own

  int64_t room() const {
    int64_t most = 0;
    for (const Lengths& r : requests)
      most = std::max(most, r.keys);
    return ceil_div(most, page_size) + spare_pages;
  }
};

struct PagedTensors {
  Tensor q, k, v, q_offsets, block_table, kv_lens;
};

/// Gives every request pages of its own, in no order, and fills what nobody owns with NaN: other
/// pages and the tails of last pages.
void place_tokens(const PagedShape& s, CaseData& c, PagedTensors& x) {
  const auto B = static_cast<int64_t>(s.requests.size());
  int64_t used = 0;
  for (const Lengths& r : s.requests)
    used += ceil_div(r.keys, s.page_size);
  const int64_t pages = s.num_pages > 0 ? s.num_pages : used + 3;
  std::vector<int64_t> order;
  for (int64_t i = 0; i < pages; ++i)
    order.push_back(i);
  for (int64_t i = pages - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)],
              order[c.rng().next_below(static_cast<uint32_t>(i + 1))]);
  }
  const int64_t gap = s.spec.bench ? 0 : 3;
  x.k = c.input({pages, s.page_size, s.nk, s.d}, s.cache, s.values, {.row_gap = gap});
  x.v = c.input({pages, s.page_size, s.nk, s.dv}, s.cache, s.values, {.row_gap = gap});
  const int64_t width = s.room();
  const RowPlacement of_request{.rows_per_batch = s.cut ? 1 : 0};
  x.block_table = c.input({B, width}, Format::kI32, {}, of_request);
  x.kv_lens = c.input({B}, Format::kI32, {}, of_request);
  std::vector<bool> owned(static_cast<size_t>(pages * s.page_size));
  size_t next = 0;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t keys = s.requests[static_cast<size_t>(b)].keys;
    x.kv_lens.set(b, static_cast<double>(keys));
    for (int64_t i = 0; i < width; ++i) {
      const bool in_use = i < ceil_div(keys, s.page_size);
      const int64_t page = in_use ? order[next++ % order.size()] : 0x7B7B7B7B;
      x.block_table.set(b * width + i, static_cast<double>(page));
      for (int64_t j = i * s.page_size; in_use && j < std::min(keys, (i + 1) * s.page_size); ++j)
        owned[static_cast<size_t>(page * s.page_size + j % s.page_size)] = true;
    }
  }
  if (s.num_pages > 0) return;
  for (const Tensor& cache : {x.k, x.v}) {
    const int64_t each = s.nk * cache.dim(3);
    for (int64_t i = 0; i < cache.numel(); ++i) {
      if (!owned[static_cast<size_t>(i / each)])
        cache.set(i, std::numeric_limits<double>::quiet_NaN());
    }
  }
}

/// Row t * N + n of the output.
std::vector<double> exact_row(const PagedShape& s,
                              const PagedTensors& x,
                              double scale,
                              int64_t row) {
  const int64_t t = row / s.n;
  int64_t b = 0;
  while (static_cast<double>(t) >= x.q_offsets[b + 1])
    ++b;
  const Lengths lengths = s.requests[static_cast<size_t>(b)];
  const int64_t i = t - static_cast<int64_t>(x.q_offsets[b]);
  const int64_t head = row % s.n / (s.n / s.nk);
  const auto values_at = [&](const Tensor& cache, int64_t j) {
    const auto page =
        static_cast<int64_t>(x.block_table[b * x.block_table.dim(1) + j / s.page_size]);
    std::vector<double> out = cache.row((page * s.page_size + j % s.page_size) * s.nk + head);
    for (double& value : out)
      value *= double{s.kv_scale};
    return out;
  };
  return oracle::attend(
             x.q.row(row), lengths.keys - lengths.queries + i + 1, s.dv, scale,
             [&](int64_t j) { return values_at(x.k, j); },
             [&](int64_t j) { return values_at(x.v, j); })
      .o;
}

void build_case(const PagedShape& s, CaseBuilder<PagedAttention>& c) {
  const auto B = static_cast<int64_t>(s.requests.size());
  int64_t T = 0;
  for (const Lengths& r : s.requests)
    T += r.queries;
  const int64_t q_rows = s.cut ? s.requests[0].queries : 0;
  if (s.cut) c.set_batch(B);
  const int64_t gap = s.spec.bench ? 0 : 2;
  PagedTensors x;
  x.q =
      c.input({T, s.n, s.d}, s.q, {.scale = s.q_scale}, {.row_gap = gap, .rows_per_batch = q_rows});
  x.q_offsets = c.input({B + 1}, Format::kI32);
  int64_t at_row = 0;
  x.q_offsets.set(0, 0);
  for (int64_t b = 0; b < B; ++b) {
    at_row += s.requests[static_cast<size_t>(b)].queries;
    x.q_offsets.set(b + 1, static_cast<double>(at_row));
  }
  place_tokens(s, c, x);
  const Tensor o = c.output({T, s.n, s.dv}, s.q, {.row_gap = gap, .rows_per_batch = q_rows});
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  c.bind([=](const Binding& at) {
    const int64_t num_offsets = s.cut ? at.batch_rows() + 1 : B + 1;
    return PagedAttention::Args{.q = at(x.q),
                                .k = at(x.k),
                                .v = at(x.v),
                                .q_offsets = slice_rows(at(x.q_offsets), 0, num_offsets),
                                .block_table = at(x.block_table),
                                .kv_lens = at(x.kv_lens),
                                .o = at(o),
                                .scale = scale,
                                .kv_scale = s.kv_scale};
  });
  auto rows = std::make_shared<std::pair<int64_t, std::vector<double>>>(-1, std::vector<double>());
  c.expect_each(o, gates::attention(s.q), [=](int64_t row, int64_t col) {
    if (rows->first != row) *rows = {row, exact_row(s, x, double{scale}, row)};
    return rows->second[static_cast<size_t>(col)];
  });
}

void add_paged_case(CaseList& list, const PagedShape& s) {
  add_case<PagedAttention>(list, s.spec, [s](CaseBuilder<PagedAttention>& c) { build_case(s, c); });
}

/// Requests of equal lengths, whose pages are all full, as a dry run counts them.
void add_call(CaseList& list, const RecordedCall& call, CaseSpec spec) {
  const int64_t batch = call.dim("kv_lens", 0);
  const int64_t page_size = call.dim("k", 1);
  const int64_t keys = call.dim("block_table", 1) * page_size;
  spec.columns = str_cat("KV=", keys, ";H=", call.dim("q", 1), ";D=", call.dim("q", 2));
  add_paged_case(list, {.spec = spec,
                        .requests = std::vector<Lengths>(static_cast<size_t>(batch),
                                                         {call.dim("q", 0) / batch, keys}),
                        .n = call.dim("q", 1),
                        .nk = call.dim("k", 2),
                        .d = call.dim("q", 2),
                        .dv = call.dim("v", 3),
                        .page_size = page_size,
                        .q = call.format("q"),
                        .cache = call.format("k"),
                        .spare_pages = 0,
                        .num_pages = call.dim("k", 0)});
}

void add_lengths(CaseList& list, Format q, Format cache) {
  const std::string suffix = str_cat("_", format_name(q), "_", format_name(cache));
  const auto add = [&](std::string_view name, std::vector<Lengths> requests, int64_t page_size) {
    add_paged_case(list, {.spec = {.name = str_cat(name, suffix)},
                          .requests = std::move(requests),
                          .nk = 2,
                          .page_size = page_size,
                          .q = q,
                          .cache = cache,
                          .kv_scale = cache == Format::kE4m3 ? 0.37f : 1.0f});
  };
  add("no_requests", {}, 16);
  add("empty_requests", {{0, 0}, {3, 3}, {0, 5}, {0, 0}}, 16);
  add("more_queries_than_keys", {{9, 4}, {70, 3}, {2, 2}}, 16);
  for (int64_t page_size : {1, 2, 16, 64, 128}) {
    std::vector<Lengths> decode;
    for (int64_t keys : {1, 2, 3, 63, 64, 65, 127, 128, 129, 211})
      decode.push_back({1, keys});
    add(str_cat("decode_page", page_size), decode, page_size);
    add(str_cat("mixed_page", page_size),
        {{1, 1}, {64, 64}, {2, 70}, {33, 193}, {65, 65}, {3, 131}, {5, 64}}, page_size);
  }
}

}  // namespace

void add_paged_attention_cases(CaseList& list) {
  for (const Format cache : {Format::kBf16, Format::kF32, Format::kE4m3}) {
    add_lengths(list, Format::kBf16, cache);
    add_lengths(list, Format::kF32, cache);
  }
  for (const auto& [n, nk] : {std::pair<int64_t, int64_t>{1, 1},
                              {3, 3},
                              {6, 2},
                              {7, 1},
                              {8, 8},
                              {9, 3},
                              {16, 16},
                              {131, 1}}) {
    for (const Format f : {Format::kBf16, Format::kF32}) {
      add_paged_case(list, {.spec = {.name = str_cat("n", n, "_of_", nk, "_", format_name(f))},
                            .requests = {{1, 70}, {20, 150}},
                            .n = n,
                            .nk = nk,
                            .q = f,
                            .cache = f});
    }
  }
  for (const auto& [d, dv] :
       {std::pair<int64_t, int64_t>{128, 128}, {2, 1}, {33, 31}, {96, 65}, {256, 64}}) {
    for (const Format f : {Format::kBf16, Format::kF32}) {
      add_paged_case(list, {.spec = {.name = str_cat("d", d, "_dv", dv, "_", format_name(f))},
                            .requests = {{11, 75}, {70, 70}, {1, 130}},
                            .d = d,
                            .dv = dv,
                            .q = f,
                            .cache = f});
    }
  }
  const auto add_values = [&](std::string_view name, Fill values, double q_scale) {
    add_paged_case(list, {.spec = {.name = std::string(name)},
                          .requests = {{11, 75}, {70, 70}},
                          .q_scale = q_scale,
                          .values = values});
  };
  add_values("heavy_tails", {.dist = Dist::kHeavyTail}, 1.0);
  add_values("one_sign", {.dist = Dist::kOneSign}, 0.2);
  add_values("zeros", {.dist = Dist::kZeros}, 1.0);
  add_values("one_key_takes_all", {}, 100.0);
  for (const Format f : {Format::kBf16, Format::kF32}) {
    add_paged_case(list, {.spec = {.name = str_cat("b6_t9_s80_alike_", format_name(f))},
                          .requests = std::vector<Lengths>(6, {9, 80}),
                          .nk = 2,
                          .q = f,
                          .cache = f,
                          .cut = true});
  }
  const auto add_bench = [&](std::string_view name, int64_t batch, Lengths each,
                             const char* phase) {
    add_paged_case(list,
                   {.spec = {.name = std::string(name),
                             .op = "attn_mha",
                             .bench = true,
                             .phase = phase,
                             .columns = str_cat("B=", batch, ";S=", each.queries, ";KV=", each.keys,
                                                ";M=", batch * each.queries, ";H=16;D=128")},
                    .requests = std::vector<Lengths>(static_cast<size_t>(batch), each),
                    .n = 16,
                    .nk = 16,
                    .d = 128,
                    .dv = 128,
                    .page_size = 64,
                    .spare_pages = 0,
                    .num_pages = 64 * batch});
  };
  for (int64_t batch : {1, 8, 32})
    add_bench(str_cat("v1_decode_b", batch, "_kv2048"), batch, {1, 2048}, "decode");
  add_bench("v1_prefill_t1024", 1, {1024, 1024}, "prefill");
  list.serve_calls("paged_attention", add_call);
}

}  // namespace fathom
