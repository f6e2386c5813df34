#include <functional>
#include <limits>
#include <memory>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"

namespace fathom {
namespace {

struct DecodeShape {
  CaseSpec spec;
  std::vector<int64_t> kv_lens;
  int64_t queries = 1;
  int64_t n = 4;
  int64_t l = 32;
  int64_t r = 16;
  int64_t page_size = 16;
  Format q = Format::kBf16;
  Format cache = Format::kBf16;
  float kv_scale = 1.0f;
  double q_scale = 1.0;  ///< large: one key gets nearly all the weight
  Fill keys = {};
  int64_t shared_pages = 0;  ///< > 0: requests draw their pages from a pool of this size
  Format o = Format::kNone;  ///< none: that of q
  bool q_apart = false;      ///< q in two parts, of which the second is a slice
  bool sinks = false;
  float o_scale = 1.0f;
  bool by_slot = false;    ///< the block table holds slots
  int64_t slots_each = 0;  ///< > 0: every query has keys of its own, so many, some of them none
  std::function<double(int64_t)> lift = nullptr;  ///< added to the logits of key i of a request
  bool lse = true;
  int64_t q_gap = 2, o_gap = 4;  ///< between heads

  Format out() const { return o == Format::kNone ? q : o; }
};

struct DecodeTensors {
  Tensor q, q_pe, cache, block_table, kv_lens, sinks, slots, o, lse;

  /// Row of q, its parts one behind the other.
  std::vector<double> query(int64_t row) const {
    std::vector<double> out = q.row(row);
    if (!q_pe.present()) return out;
    const std::vector<double> tail = q_pe.row(row);
    out.insert(out.end(), tail.begin(), tail.end());
    return out;
  }
};

/// Gives every request pages of its own, in no order, and fills what nobody owns with NaN: other
/// pages and the tails of last pages.
void place_keys(const DecodeShape& s, CaseData& c, DecodeTensors& x) {
  const auto B = static_cast<int64_t>(s.kv_lens.size());
  int64_t used = 0;
  int64_t most = 0;
  for (int64_t keys : s.kv_lens) {
    used += ceil_div(keys, s.page_size);
    most = std::max(most, keys);
  }
  const int64_t pages = s.shared_pages > 0 ? s.shared_pages : used + 3;
  const int64_t width = ceil_div(most, s.page_size) + 2;
  std::vector<int64_t> order;
  for (int64_t i = 0; i < pages; ++i)
    order.push_back(i);
  for (int64_t i = pages - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)],
              order[c.rng().next_below(static_cast<uint32_t>(i + 1))]);
  }
  const int64_t d = s.l + s.r;
  x.cache = c.input({pages, s.page_size, d}, s.cache, s.keys);
  x.block_table = c.input({B, width}, Format::kI32, {}, {.rows_per_batch = 1});
  x.kv_lens = c.input({B}, Format::kI32, {}, {.rows_per_batch = 1});
  std::vector<bool> owned(static_cast<size_t>(pages * s.page_size));
  size_t next = 0;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t keys = s.kv_lens[static_cast<size_t>(b)];
    x.kv_lens.set(b, static_cast<double>(keys));
    for (int64_t i = 0; i < width; ++i) {
      const bool in_use = i < ceil_div(keys, s.page_size);
      const int64_t page = in_use ? order[next++ % order.size()] : 0x7B7B7B7B;
      x.block_table.set(b * width + i, static_cast<double>(page));
      for (int64_t j = i * s.page_size; in_use && j < std::min(keys, (i + 1) * s.page_size); ++j) {
        owned[static_cast<size_t>(page * s.page_size + j % s.page_size)] = true;
      }
    }
  }
  if (s.shared_pages > 0) return;
  for (int64_t i = 0; i < x.cache.numel(); ++i) {
    if (!owned[static_cast<size_t>(i / d)])
      x.cache.set(i, std::numeric_limits<double>::quiet_NaN());
  }
}

/// Adds `lift` to logits through the last column, of which no value has anything.
void lift_keys(const DecodeShape& s, double scale, DecodeTensors& x) {
  constexpr double kQuery = 8;
  const Tensor& q = x.q_pe.present() ? x.q_pe : x.q;
  const int64_t width = q.dim(q.rank() - 1);
  for (int64_t i = width - 1; i < q.numel(); i += width)
    q.set(i, kQuery);
  const int64_t d = s.l + s.r;
  for (size_t b = 0; b < s.kv_lens.size(); ++b) {
    for (int64_t i = 0; i < s.kv_lens[b]; ++i) {
      const int64_t entry = static_cast<int64_t>(b) * x.block_table.dim(1) + i / s.page_size;
      const int64_t slot =
          static_cast<int64_t>(x.block_table[entry]) * s.page_size + i % s.page_size;
      x.cache.set(slot * d + d - 1, s.lift(i) / (kQuery * scale * double{s.kv_scale}));
    }
  }
}

/// Turns the pages of the block table into the slots of their keys.
void name_slots(const DecodeShape& s, CaseData& c, DecodeTensors& x) {
  const int64_t width = x.block_table.dim(1);
  const int64_t entries = width * s.page_size;
  const Tensor slots =
      c.input({x.block_table.dim(0), entries}, Format::kI32, {}, {.rows_per_batch = 1});
  slots.fill([&](int64_t i) {
    const int64_t b = i / entries;
    const int64_t key = i % entries;
    if (key >= s.kv_lens[static_cast<size_t>(b)]) return double{0x7B7B7B7B};
    return x.block_table[b * width + key / s.page_size] * double(s.page_size) +
           double(key % s.page_size);
  });
  x.block_table = slots;
}

/// Keys of the request in any order for every query, every fourth entry none.
void choose_slots(const DecodeShape& s, CaseData& c, DecodeTensors& x) {
  const auto B = static_cast<int64_t>(s.kv_lens.size());
  x.slots = c.input({B, s.queries, s.slots_each}, Format::kI32, {}, {.rows_per_batch = 1});
  const int64_t width = x.block_table.dim(1);
  x.slots.fill([&](int64_t i) {
    const int64_t b = i / (s.queries * s.slots_each);
    const int64_t keys = s.kv_lens[static_cast<size_t>(b)];
    if (keys == 0 || i % 4 == 1) return -1.0;
    const int64_t key = c.rng().next_below(static_cast<uint32_t>(keys));
    return x.block_table[b * width + key / s.page_size] * double(s.page_size) +
           double(key % s.page_size);
  });
}

/// Row (b * Q + j) * N + n of the output.
oracle::AttentionRow exact_row(const DecodeShape& s,
                               const DecodeTensors& x,
                               double scale,
                               int64_t row) {
  const int64_t b = row / (s.queries * s.n);
  const int64_t j = row / s.n % s.queries;
  const auto scaled = [&](int64_t slot) {
    std::vector<double> k = x.cache.row(slot);
    for (double& v : k)
      v *= double{s.kv_scale};
    return k;
  };
  std::vector<int64_t> slots;
  const int64_t page_size = s.by_slot ? 1 : s.page_size;
  const int64_t keys = s.kv_lens[static_cast<size_t>(b)] - s.queries + j + 1;
  for (int64_t i = 0; i < keys && s.slots_each == 0; ++i) {
    const int64_t width = x.block_table.dim(1);
    const auto page = static_cast<int64_t>(x.block_table[b * width + i / page_size]);
    slots.push_back(page * page_size + i % page_size);
  }
  for (int64_t i = 0; i < s.slots_each; ++i) {
    const auto slot = static_cast<int64_t>(x.slots[(b * s.queries + j) * s.slots_each + i]);
    if (slot >= 0) slots.push_back(slot);
  }
  const auto key = [&](int64_t i) { return scaled(slots[static_cast<size_t>(i)]); };
  oracle::AttentionRow out =
      oracle::attend(x.query(row), static_cast<int64_t>(slots.size()), s.l, scale, key, key);
  if (x.sinks.present()) out = oracle::with_sink(out, x.sinks[row % s.n]);
  for (double& o : out.o)
    o *= double{s.o_scale};
  return out;
}

template <class K>
void build_case(const DecodeShape& s, CaseBuilder<K>& c) {
  constexpr bool kMulti = std::is_same_v<K, MlaDecodeMulti>;
  const auto B = static_cast<int64_t>(s.kv_lens.size());
  c.set_batch(B);
  const auto dims = [&](std::vector<int64_t> tail) {
    std::vector<int64_t> out = {B};
    if (kMulti) out.push_back(s.queries);
    out.insert(out.end(), tail.begin(), tail.end());
    return out;
  };
  DecodeTensors x;
  x.q = c.input(dims({s.n, s.q_apart ? s.l : s.l + s.r}), s.q, {.scale = s.q_scale},
                {.row_gap = s.q_gap, .rows_per_batch = 1});
  if (s.q_apart) {
    x.q_pe =
        c.input(dims({s.n, s.r}), s.q, {.scale = s.q_scale}, {.row_gap = 128, .rows_per_batch = 1});
  }
  // The scale belongs to the width of a head before absorption, here r + 2 r.
  const float scale = 1.0f / std::sqrt(static_cast<float>(3 * s.r));
  place_keys(s, c, x);
  if (s.lift) lift_keys(s, double{scale}, x);
  if (s.by_slot) name_slots(s, c, x);
  if (s.slots_each > 0) choose_slots(s, c, x);
  if (s.sinks) x.sinks = c.input({s.n}, Format::kF32, {.scale = 2});
  x.o = c.output(dims({s.n, s.l}), s.out(), {.row_gap = s.o_gap, .rows_per_batch = 1});
  if (s.lse) x.lse = c.output(dims({s.n}), Format::kF32, {.rows_per_batch = 1});
  c.bind([=](const Binding& at) {
    return typename K::Args{.q = at(x.q),
                            .cache = at(x.cache),
                            .block_table = at(x.block_table),
                            .kv_lens = at(x.kv_lens),
                            .o = at(x.o),
                            .lse = at(x.lse),
                            .scale = scale,
                            .kv_scale = s.kv_scale,
                            .q_pe = at(x.q_pe),
                            .sinks = at(x.sinks),
                            .o_scale = s.o_scale,
                            .table = s.by_slot ? KeyTable::kSlots : KeyTable::kPages,
                            .slots = at(x.slots)};
  });
  auto rows = std::make_shared<oracle::AttentionRows>(
      [=](int64_t row) { return exact_row(s, x, double{scale}, row); });
  c.expect_each(x.o, gates::attention(s.out()),
                [=](int64_t row, int64_t col) { return (*rows)(row).o[static_cast<size_t>(col)]; });
  if (s.spec.bench) return;
  c.expect_each(x.lse, gates::log_sum_exp(),
                [=](int64_t row, int64_t col) { return (*rows)(row * s.n + col).lse; });
}

template <class K>
void add_case_of(CaseList& list, const DecodeShape& s) {
  add_case<K>(list, s.spec, [s](CaseBuilder<K>& c) { build_case(s, c); });
}

void add_decode_case(CaseList& list, const DecodeShape& s) {
  if (s.queries == 1 && s.slots_each == 0) add_case_of<MlaDecode>(list, s);
  add_case_of<MlaDecodeMulti>(list, s);
}

/// Requests of equal lengths, whose pages are all full, as a dry run counts them.
template <class K>
void add_call(CaseList& list, const RecordedCall& call, CaseSpec spec) {
  const int heads = call.rank("q") - 2;
  const int64_t batch = call.dim("block_table", 0);
  const int64_t page_size = call.dim("cache", 1);
  const int64_t keys = call.dim("block_table", 1) * page_size;
  spec.columns = str_cat("KV=", keys, ";H=", call.dim("q", heads), ";D=", call.dim("cache", 2));
  add_case_of<K>(list, {.spec = spec,
                        .kv_lens = std::vector<int64_t>(static_cast<size_t>(batch), keys),
                        .queries = heads == 2 ? call.dim("q", 1) : 1,
                        .n = call.dim("q", heads),
                        .l = call.dim("o", heads + 1),
                        .r = call.dim("cache", 2) - call.dim("o", heads + 1),
                        .page_size = page_size,
                        .q = call.format("q"),
                        .cache = call.format("cache"),
                        .shared_pages = call.dim("cache", 0),
                        .o = call.format("o"),
                        .lse = call.has("lse"),
                        .q_gap = call.row_gap("q"),
                        .o_gap = call.row_gap("o")});
}

void add_small_cases(CaseList& list) {
  const std::vector<int64_t> edges = {0, 1, 2, 3, 63, 64, 65, 127, 128, 129, 211};
  for (int64_t page_size : {1, 2, 16, 64, 128}) {
    for (const Format cache : {Format::kBf16, Format::kE4m3}) {
      add_decode_case(list,
                      {.spec = {.name = str_cat("edges_page", page_size, "_", format_name(cache))},
                       .kv_lens = edges,
                       .page_size = page_size,
                       .cache = cache,
                       .kv_scale = cache == Format::kE4m3 ? 0.37f : 1.0f});
    }
  }
  for (const Format cache : {Format::kF32, Format::kBf16, Format::kE4m3}) {
    add_decode_case(list, {.spec = {.name = str_cat("edges_f32_", format_name(cache))},
                           .kv_lens = edges,
                           .q = Format::kF32,
                           .cache = cache,
                           .kv_scale = cache == Format::kE4m3 ? 0.37f : 1.0f});
  }
  add_decode_case(
      list, {.spec = {.name = "bf16_query_f32_cache"}, .kv_lens = {5, 70}, .cache = Format::kF32});
  add_decode_case(list, {.spec = {.name = "no_requests"}, .kv_lens = {}});
  for (int64_t keys : {511, 512, 513, 1024, 1100}) {  // the splits of one request
    add_decode_case(list,
                    {.spec = {.name = str_cat("b1_kv", keys)}, .kv_lens = {keys}, .page_size = 64});
  }
  add_decode_case(list,
                  {.spec = {.name = "b1_kv9300_n1"}, .kv_lens = {9300}, .n = 1, .page_size = 64});
  for (int64_t n : {1, 2, 3, 5, 7, 8, 9, 16, 17, 131}) {
    add_decode_case(list, {.spec = {.name = str_cat("b2_n", n)}, .kv_lens = {70, 530}, .n = n});
  }
  for (const auto& [l, r] :
       {std::pair<int64_t, int64_t>{512, 64}, {128, 32}, {33, 4}, {1, 2}, {50, 7}}) {
    add_decode_case(list, {.spec = {.name = str_cat("l", l, "_r", r)},
                           .kv_lens = {100, 1, 17},
                           .n = 3,
                           .l = l,
                           .r = r});
  }
  add_decode_case(list, {.spec = {.name = "one_key_takes_all"},
                         .kv_lens = {300, 40},
                         .l = 512,
                         .r = 64,
                         .q_scale = 100});
  add_decode_case(list, {.spec = {.name = "heavy_tails"},
                         .kv_lens = {300, 40},
                         .l = 512,
                         .r = 64,
                         .keys = {.dist = Dist::kHeavyTail}});
  add_decode_case(list,
                  {.spec = {.name = "zeros"}, .kv_lens = {70}, .keys = {.dist = Dist::kZeros}});
  for (int64_t queries : {2, 3, 5}) {
    for (const Format q : {Format::kBf16, Format::kF32}) {
      add_decode_case(list, {.spec = {.name = str_cat("queries", queries, "_", format_name(q))},
                             .kv_lens = {0, 1, 2, 3, 5, 64, 65, 66, 67, 513, 514},
                             .queries = queries,
                             .q = q,
                             .cache = q});
    }
  }
}

/// What the reference calls pass beside a cache of the query's format.
void add_reference_cases(CaseList& list) {
  const std::vector<int64_t> some = {0, 1, 2, 3, 63, 64, 65, 130};
  // Queries in two parts; widths at which a part ends within a vector, or within a pair.
  for (const auto& [l, r] : {std::pair<int64_t, int64_t>{512, 64}, {32, 16}, {34, 6}, {33, 4}}) {
    for (const Format f : {Format::kBf16, Format::kF32, Format::kF16}) {
      add_decode_case(list, {.spec = {.name = str_cat("apart_l", l, "_r", r, "_", format_name(f))},
                             .kv_lens = some,
                             .n = 3,
                             .l = l,
                             .r = r,
                             .q = f,
                             .cache = f,
                             .q_apart = true});
    }
  }
  for (const Format out : {Format::kBf16, Format::kF32}) {
    for (int64_t queries : {1, 3}) {
      add_decode_case(list,
                      {.spec = {.name = str_cat("codes_queries", queries, "_", format_name(out))},
                       .kv_lens = some,
                       .queries = queries,
                       .page_size = 32,
                       .q = Format::kE4m3,
                       .cache = Format::kE4m3,
                       .o = out,
                       .o_scale = 0.37f});
    }
  }
  for (const Format f : {Format::kBf16, Format::kF32, Format::kF16}) {
    add_decode_case(list, {.spec = {.name = str_cat("sinks_", format_name(f))},
                           .kv_lens = some,
                           .queries = 2,
                           .q = f,
                           .cache = f,
                           .sinks = true,
                           .o_scale = 1.5f});
    add_decode_case(list, {.spec = {.name = str_cat("by_slot_", format_name(f))},
                           .kv_lens = {0, 1, 70, 600},
                           .q = f,
                           .cache = f,
                           .by_slot = true});
    for (int64_t each : {1, 2, 3, 63, 64, 65, 130, 700}) {
      add_decode_case(list, {.spec = {.name = str_cat("slots", each, "_", format_name(f))},
                             .kv_lens = {0, 1, 3, 800},
                             .queries = each % 2 + 1,
                             .q = f,
                             .cache = f,
                             .slots_each = each});
    }
  }
  add_decode_case(list, {.spec = {.name = "long_sinks_b1_kv1100"},
                         .kv_lens = {1100},
                         .page_size = 64,
                         .sinks = true});
}

/// The widths of the model, which kernels of fixed tiles take: lengths at every edge of tiles,
/// pairs of tiles and pieces of a request, on both sides of 512 keys.
void add_model_widths(CaseList& list) {
  const auto add = [&](std::string_view name, DecodeShape s) {
    s.spec.name = str_cat("r1_width_", name);
    s.l = 512;
    s.r = 64;
    add_decode_case(list, s);
  };
  const std::vector<int64_t> edges = {0, 1, 63, 64, 65, 127, 128, 129, 300, 511, 512, 513, 700};
  for (const Format cache : {Format::kBf16, Format::kE4m3}) {
    const float kv_scale = cache == Format::kE4m3 ? 0.37f : 1.0f;
    for (int64_t page_size : {1, 16, 64, 128}) {
      add(str_cat("page", page_size, "_", format_name(cache)), {.spec = {},
                                                                .kv_lens = edges,
                                                                .n = 3,
                                                                .page_size = page_size,
                                                                .cache = cache,
                                                                .kv_scale = kv_scale});
    }
    add(str_cat("queries3_", format_name(cache)), {.spec = {},
                                                   .kv_lens = {0, 1, 2, 3, 65, 129, 514, 1025},
                                                   .queries = 3,
                                                   .n = 5,
                                                   .cache = cache,
                                                   .kv_scale = kv_scale});
    add(str_cat("b1_kv2500_", format_name(cache)), {.spec = {},
                                                    .kv_lens = {2500},
                                                    .n = 2,
                                                    .page_size = 64,
                                                    .cache = cache,
                                                    .kv_scale = kv_scale});
  }
  for (int64_t n : {1, 16, 64, 65, 128, 131})
    add(str_cat("n", n), {.spec = {}, .kv_lens = {70, 530}, .n = n});
  add("queries5_n16", {.spec = {}, .kv_lens = {4, 66, 600}, .queries = 5, .n = 16});
  // Few rows of few requests, which a cluster of blocks takes: lengths at the edges of chunks of 16
  // keys and of pieces of them, one request and eight, rows of more than one cluster.
  const std::vector<int64_t> chunks = {0, 15, 16, 17, 257, 1023};
  for (int64_t page_size : {1, 6, 64, 128}) {
    add(str_cat("few_page", page_size),
        {.spec = {}, .kv_lens = chunks, .n = 3, .page_size = page_size});
  }
  for (int64_t keys : {1, 16, 128, 129, 256, 540, 1024, 1025, 2049})
    add(str_cat("few_b1_kv", keys), {.spec = {}, .kv_lens = {keys}, .n = 16, .page_size = 64});
  add("few_b8", {.spec = {},
                 .kv_lens = {0, 1300, 513, 1024, 1025, 1, 1407, 1408},
                 .n = 16,
                 .page_size = 64,
                 .sinks = true});
  add("few_queries2_n16", {.spec = {}, .kv_lens = {1, 70, 600}, .queries = 2, .n = 16});
  add("few_queries5_n5",
      {.spec = {}, .kv_lens = {0, 3, 66, 600}, .queries = 5, .n = 5, .sinks = true});
  add("sinks", {.spec = {},
                .kv_lens = {0, 1, 70, 600},
                .queries = 2,
                .n = 4,
                .sinks = true,
                .o_scale = 1.5f});
  add("sinks_b1_kv1100", {.spec = {}, .kv_lens = {1100}, .page_size = 64, .sinks = true});
  add("apart_by_slot",
      {.spec = {}, .kv_lens = {0, 1, 70, 600}, .n = 4, .q_apart = true, .by_slot = true});
  add("codes", {.spec = {},
                .kv_lens = {0, 1, 70, 600},
                .n = 4,
                .page_size = 32,
                .q = Format::kE4m3,
                .cache = Format::kE4m3,
                .o = Format::kBf16,
                .o_scale = 0.37f});
  // So many requests, and room for so many keys, that a GPU of 132 multiprocessors adds the pieces
  // of a request in a second kernel.
  std::vector<int64_t> many = {3970, 4000};
  for (int64_t b = 2; b < 43; ++b)
    many.push_back(edges[static_cast<size_t>(b) % edges.size()]);
  add("long_b43", {.spec = {}, .kv_lens = many, .n = 2, .page_size = 64, .sinks = true});
  add("long_one_key_takes_all", {.spec = {}, .kv_lens = {1500, 640}, .n = 4, .q_scale = 100});
}

/// More keys than those of which a block takes all weights in two terms, few of which share a row's
/// weight: what rounding leaves of them counts. So many requests, most of them short, that a GPU of
/// 132 multiprocessors does not cut them; then one that it cuts into long pieces of a cluster, and
/// requests whose pieces a second kernel adds.
void add_large_weights(CaseList& list) {
  const auto add = [&](std::string_view name, DecodeShape s) {
    s.spec.name = str_cat("r1_width_large_", name);
    s.l = 512;
    s.r = 64;
    s.page_size = 64;
    add_decode_case(list, s);
  };
  const auto lengths = [](std::vector<int64_t> first, int64_t requests) {
    while (static_cast<int64_t>(first.size()) < requests)
      first.push_back(static_cast<int64_t>(first.size()) % 3);
    return first;
  };
  const auto one_of = [](int64_t step) {
    return [=](int64_t key) { return key % step == 5 ? 9.0 : 0.0; };
  };
  const std::vector<int64_t> long_ones = lengths({1500, 577, 641}, 100);
  const auto add_even = [&](std::string_view name, std::function<double(int64_t)> lift) {
    add(name, {.spec = {}, .kv_lens = long_ones, .n = 9, .q_scale = 0.3, .lift = lift});
  };
  // One key, two, four, eight, twelve and twenty of 1,500; keys that one lane weighs all of.
  for (int64_t step : {1499, 701, 353, 181, 121, 73, 128, 64, 512})
    add_even(str_cat("every", step), one_of(step));
  for (int64_t span : {8, 17, 20, 32}) {
    add_even(str_cat("span", span),
             [=](int64_t key) { return key >= 510 && key < 510 + span ? 9.0 : 0.0; });
  }
  add_even("first_key", [](int64_t key) { return key == 0 ? 8.0 : 0.0; });
  add_even("rising", [](int64_t key) { return 0.04 * static_cast<double>(key); });
  add_even("falling", [](int64_t key) { return -0.04 * static_cast<double>(key); });
  add("noise", {.spec = {}, .kv_lens = long_ones, .n = 9, .q_scale = 2});
  add("rows64",
      {.spec = {}, .kv_lens = lengths({600}, 100), .n = 64, .q_scale = 0.3, .lift = one_of(121)});
  add("queries3_rising", {.spec = {},
                          .kv_lens = long_ones,
                          .queries = 3,
                          .n = 5,
                          .q_scale = 0.3,
                          .lift = [](int64_t key) { return 0.04 * static_cast<double>(key); }});
  for (int64_t step : {181, 73}) {
    add(str_cat("every", step, "_fp8"), {.spec = {},
                                         .kv_lens = long_ones,
                                         .n = 9,
                                         .cache = Format::kE4m3,
                                         .kv_scale = 0.37f,
                                         .q_scale = 0.3,
                                         .lift = one_of(step)});
  }
  add("by_slot", {.spec = {},
                  .kv_lens = long_ones,
                  .n = 5,
                  .q_scale = 0.3,
                  .sinks = true,
                  .by_slot = true,
                  .lift = one_of(121)});
  for (const Format cache : {Format::kBf16, Format::kE4m3}) {
    add(str_cat("b1_kv9300_", format_name(cache)), {.spec = {},
                                                    .kv_lens = {9300},
                                                    .n = 2,
                                                    .cache = cache,
                                                    .q_scale = 0.3,
                                                    .lift = one_of(353)});
  }
  add("b1_kv4000", {.spec = {}, .kv_lens = {4000}, .n = 2, .q_scale = 0.3, .lift = one_of(353)});
  add("b43", {.spec = {},
              .kv_lens = lengths({3970, 4000}, 43),
              .n = 2,
              .q_scale = 0.3,
              .sinks = true,
              .lift = one_of(353)});
}

/// The steps of the published benchmark: a pool of keys larger than the caches, as above.
void add_reference_points(CaseList& list) {
  const auto add = [&](const ReferencePoint& p, int64_t keys, const std::string& suffix) {
    const double products = 2.0 * 128 * (576 + 512);
    const double flops = products * static_cast<double>(p.batch * keys);
    add_reference_case(
        list, p, {.op = "attn_mqa", .suffix = suffix, .flops = flops}, [&](CaseList& one) {
          add_decode_case(one, {.spec = {.name = "reference",
                                         .bench = true,
                                         .columns = str_cat("KV=", keys, ";H=128;D=576"),
                                         .note = "pages drawn from a pool of 65,536 keys"},
                                .kv_lens = std::vector<int64_t>(static_cast<size_t>(p.batch), keys),
                                .n = 128,
                                .l = 512,
                                .r = 64,
                                .page_size = 64,
                                .shared_pages = 1024});
        });
  };
  const ReferenceLimit decode{.phase = "decode",
                              .why = "attention of decode; prefill runs ragged_attention"};
  list.set_reference_limit("mla_decode_multi", decode);
  for (const ReferencePoint& p : reference_points(list, "mla_decode", decode)) {
    add(p, kReferenceContext, "");
    if (p.batch != 1) continue;
    for (int64_t keys : {128, 256, 512, 2048})
      add(p, keys, str_cat("kv", keys));
  }
}

}  // namespace

void add_mla_decode_cases(CaseList& list) {
  add_small_cases(list);
  add_reference_cases(list);
  add_model_widths(list);
  add_large_weights(list);
  constexpr int64_t kPoolKeys = 64 << 10;  // 75 MB in bf16: more than the caches hold
  const auto add_bench = [&](std::string_view model, int64_t n, int64_t b, int64_t keys,
                             int64_t queries, Format cache) {
    add_decode_case(list,
                    {.spec = {.name = str_cat(model, "_b", b, "_kv", keys, queries > 1 ? "_q2" : "",
                                              cache == Format::kE4m3 ? "_fp8" : ""),
                              .op = "attn_mqa",
                              .bench = true,
                              .phase = queries > 1 ? "verify" : "decode",
                              .columns = str_cat("B=", b, ";S=", queries, ";KV=", keys,
                                                 ";M=", b * queries, ";H=", n, ";D=576"),
                              .note = "pages drawn from a pool of 65,536 keys"},
                     .kv_lens = std::vector<int64_t>(static_cast<size_t>(b), keys),
                     .queries = queries,
                     .n = n,
                     .l = 512,
                     .r = 64,
                     .page_size = 64,
                     .cache = cache,
                     .shared_pages = kPoolKeys / 64});
  };
  for (const auto& [model, n] :
       {std::pair<std::string_view, int64_t>{"r1", 128}, {"v2_lite", 16}}) {
    for (int64_t b : {1, 8, 64}) {
      for (int64_t keys : {1024, 4096})
        add_bench(model, n, b, keys, 1, Format::kBf16);
    }
    add_bench(model, n, 8, 4096, 1, Format::kE4m3);
    add_bench(model, n, 8, 1024, 2, Format::kBf16);
  }
  add_reference_points(list);
  list.serve_calls("mla_decode", add_call<MlaDecode>);
  list.serve_calls("mla_decode_multi", add_call<MlaDecodeMulti>);
}

}  // namespace fathom
