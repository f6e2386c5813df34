#include <functional>
#include <limits>
#include <memory>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/kernels/attn/mla_decode/mla_decode_case.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"

namespace fathom {
namespace {

struct DecodeTensors {
  Tensor q, q_pe, cache, block_table, kv_lens, sinks, slots, tree_masks, tree_begins, o, lse;
  std::vector<std::vector<int64_t>> seen;  ///< of trees: keys of query b * Q + j

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
  const int64_t width = ceil_div(most, s.page_size) + s.spare_pages;
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

/// Random trees: a row follows any earlier one or what lies before all; then the masks of the last
/// rows. Numbers of cases are doubles, so no mask has bits more than 52 apart.
void grow_trees(const DecodeShape& s, CaseData& c, DecodeTensors& x) {
  const auto B = static_cast<int64_t>(s.kv_lens.size());
  x.tree_masks = c.input({B, s.queries}, Format::kI64, {}, {.row_gap = 3, .rows_per_batch = 1});
  x.tree_begins = c.input({B}, Format::kI32, {}, {.rows_per_batch = 1});
  x.seen.resize(static_cast<size_t>(B * s.queries));
  for (int64_t b = 0; b < B; ++b) {
    const int64_t keys = s.kv_lens[static_cast<size_t>(b)];
    const bool chain = s.trees[static_cast<size_t>(b)] < 0;
    const int64_t rows = std::min(keys, chain ? s.queries - 1 : s.trees[static_cast<size_t>(b)]);
    const int64_t begin = keys - rows;
    x.tree_begins.set(b, static_cast<double>(begin));
    std::vector<std::vector<int64_t>> paths;  // of each row, from the first on
    for (int64_t row = 0; row < rows; ++row) {
      const auto limit = static_cast<uint32_t>(paths.size() + 1);
      const int64_t parent = chain ? row - 1 : int64_t{c.rng().next_below(limit)} - 1;
      std::vector<int64_t> path;
      if (parent >= 0) path = paths[static_cast<size_t>(parent)];
      if (!path.empty() && row - path.front() > 52) path.clear();
      path.push_back(row);
      paths.push_back(path);
    }
    for (int64_t j = 0; j < s.queries; ++j) {
      const int64_t row = rows - s.queries + j;
      int64_t mask = 0;
      std::vector<int64_t>& seen = x.seen[static_cast<size_t>(b * s.queries + j)];
      for (int64_t i = 0; i < begin + std::min<int64_t>(row + 1, 0); ++i)
        seen.push_back(i);
      for (int64_t i = 0; row >= 0 && i < std::ssize(paths[static_cast<size_t>(row)]); ++i) {
        const int64_t on_path = paths[static_cast<size_t>(row)][static_cast<size_t>(i)];
        mask |= static_cast<int64_t>(uint64_t{1} << on_path);
        seen.push_back(begin + on_path);
      }
      x.tree_masks.set(b * s.queries + j, static_cast<double>(mask));
    }
  }
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
  const auto slot_of = [&](int64_t i) {
    const int64_t width = x.block_table.dim(1);
    const auto page = static_cast<int64_t>(x.block_table[b * width + i / page_size]);
    return page * page_size + i % page_size;
  };
  for (int64_t i = 0; i < keys && s.slots_each == 0 && s.trees.empty(); ++i)
    slots.push_back(slot_of(i));
  if (!s.trees.empty()) {
    for (const int64_t place : x.seen[static_cast<size_t>(b * s.queries + j)])
      slots.push_back(slot_of(place));
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
  if (!s.trees.empty()) grow_trees(s, c, x);
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
                            .slots = at(x.slots),
                            .tree_masks = at(x.tree_masks),
                            .tree_begins = at(x.tree_begins)};
  });
  auto rows = std::make_shared<oracle::AttentionRows>(
      [=](int64_t row) { return exact_row(s, x, double{scale}, row); });
  c.expect_each(x.o, gates::attention(s.out(), s.o_scale),
                [=](int64_t row, int64_t col) { return (*rows)(row).o[static_cast<size_t>(col)]; });
  if (s.spec.bench) return;
  c.expect_each(x.lse, gates::log_sum_exp(),
                [=](int64_t row, int64_t col) { return (*rows)(row * s.n + col).lse; });
}

template <class K>
void add_case_of(CaseList& list, const DecodeShape& s) {
  add_case<K>(list, s.spec, [s](CaseBuilder<K>& c) { build_case(s, c); });
}

}  // namespace

void add_decode_case(CaseList& list, const DecodeShape& s) {
  if (s.queries == 1 && s.slots_each == 0 && s.trees.empty()) add_case_of<MlaDecode>(list, s);
  add_case_of<MlaDecodeMulti>(list, s);
}

namespace {

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
                        .spare_pages = 0,
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
  add_decode_model_widths(list);
  add_decode_large_weights(list);
  add_decode_trees(list);
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
