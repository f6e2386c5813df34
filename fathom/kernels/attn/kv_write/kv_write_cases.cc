#include <algorithm>
#include <limits>

#include "fathom/kernels/attn/kv_write/kv_write.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"

namespace fathom {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct CacheShape {
  CaseSpec spec;
  int64_t t;
  int64_t l = 512;
  int64_t r = 64;
  Format values = Format::kBf16;
  Format cache = Format::kBf16;
  int64_t page_size = 64;
  int64_t begin = 0;  ///< of a gather
  float scale = 1.0f;
  int64_t pages = 0;          ///< of the cache; 0: twice as many as there are tokens, and more
  int64_t logical_pages = 0;  ///< of a gather's request; 0: one that holds no token comes last
  bool padding = true;        ///< a write has a row that goes nowhere
  int64_t c_gap = 64, k_pe_gap = 512;  ///< of a write, whose operands are slices
};

Gate write_gate(const CacheShape& s) {
  if (s.cache == Format::kE4m3) return {.abs = 0x1.001p-10, .rel = 0x1.001p-4};  // half a step
  if (s.cache == Format::kBf16 && s.values == Format::kF32) return {.bf16_ulps = 1};
  return gates::exact();
}

Gate gather_gate(const CacheShape& s) {
  if (s.values == Format::kBf16 && s.cache != Format::kBf16) return {.bf16_ulps = 1};
  if (s.cache == Format::kE4m3) return {.rel = 1e-7};  // code * scale in float32
  return gates::exact();
}

void add_write_case(CaseList& list, const CacheShape& s) {
  add_case<KvWrite>(list, s.spec, [s](CaseBuilder<KvWrite>& c) {
    c.set_batch(s.t);
    const int64_t pages = s.pages > 0 ? s.pages : 2 * s.t / s.page_size + 2;
    const auto input = [&](int64_t width, int64_t gap) {
      // What is timed has values of a model.
      const Dist dist = s.spec.bench ? Dist::kNormal : Dist::kMixedRows;
      return c.input({s.t, width}, s.values, {.dist = dist, .scale = 4},
                     {.row_gap = gap, .rows_per_batch = 1});
    };
    const Tensor latent = input(s.l, s.c_gap);
    const Tensor k_pe = input(s.r, s.k_pe_gap);
    const Tensor slots = c.input({s.t}, Format::kI64, {}, {.rows_per_batch = 1});
    // Backwards through the pages, every other slot where there are so many.
    const int64_t num_slots = pages * s.page_size;
    const int64_t step = num_slots >= 2 * s.t ? 2 : 1;
    slots.fill([&](int64_t t) { return s.padding && t == 2 ? -1 : num_slots - 1 - step * t; });
    const Tensor cache = c.output({pages, s.page_size, s.l + s.r}, s.cache);
    c.bind([=](const Binding& at) {
      return KvWrite::Args{.c = at(latent),
                           .k_pe = at(k_pe),
                           .slots = at(slots),
                           .cache = at(cache),
                           .scale = s.scale};
    });
    c.expect_rows(cache, write_gate(s), [=](int64_t slot, std::span<double> out) {
      std::fill(out.begin(), out.end(), kNan);  // not written
      for (int64_t t = 0; t < s.t; ++t) {
        if (static_cast<int64_t>(slots[t]) != slot) continue;
        for (int64_t i = 0; i < s.l + s.r; ++i) {
          const double v = i < s.l ? latent[t * s.l + i] : k_pe[t * s.r + i - s.l];
          const double code = std::clamp(v / double{s.scale}, -448.0, 448.0);
          out[static_cast<size_t>(i)] = s.cache == Format::kE4m3 ? code : v;
        }
      }
    });
  });
}

void add_gather_case(CaseList& list, const CacheShape& s) {
  add_case<KvGather>(list, s.spec, [s](CaseBuilder<KvGather>& c) {
    const int64_t d = s.l + s.r;
    const int64_t logical_pages =
        s.logical_pages > 0 ? s.logical_pages : (s.begin + s.t) / s.page_size + 2;
    const int64_t pages = s.pages > 0 ? s.pages : logical_pages + 3;
    const Tensor cache = c.input({pages, s.page_size, d}, s.cache, {.scale = 4});
    const Tensor table = c.input({logical_pages}, Format::kI32);
    // A stride that has no factor with the number of pages visits each once.
    const int64_t stride = pages % 5 == 0 ? 1 : 5;
    const auto page_of = [=](int64_t i) { return (i * stride + 2) % pages; };
    table.fill([&](int64_t i) {
      const bool used = i * s.page_size < s.begin + s.t && (i + 1) * s.page_size > s.begin;
      return used ? page_of(i) : int64_t{0x7B7B7B7B};
    });
    const Tensor latent = c.output({s.t, s.l}, s.values, {.row_gap = 5});
    const Tensor k_pe = c.output({s.t, s.r}, s.values, {.row_gap = 1});
    c.bind([=](const Binding& at) {
      return KvGather::Args{.cache = at(cache),
                            .pages = at(table),
                            .c = at(latent),
                            .k_pe = at(k_pe),
                            .begin = s.begin,
                            .scale = s.scale};
    });
    const auto value = [=](int64_t t, int64_t i) {
      const int64_t token = s.begin + t;
      const int64_t slot = page_of(token / s.page_size) * s.page_size + token % s.page_size;
      return cache[slot * d + i] * double{s.scale};
    };
    c.expect_each(latent, gather_gate(s), value);
    c.expect_each(k_pe, gather_gate(s), [=](int64_t t, int64_t i) { return value(t, s.l + i); });
  });
}

}  // namespace

void add_kv_write_cases(CaseList& list) {
  for (int64_t page_size : {1, 2, 16, 64, 128}) {
    for (int64_t t : {0, 1, 2, 3, 7, 67}) {
      const CaseSpec spec = {.name = str_cat("t", t, "_page", page_size)};
      add_write_case(list, {.spec = spec, .t = t, .page_size = page_size});
      add_gather_case(list, {.spec = spec, .t = t, .page_size = page_size, .begin = t * 3 + 1});
    }
  }
  for (const Format values : {Format::kBf16, Format::kF32}) {
    for (const Format cache : {Format::kBf16, Format::kF32, Format::kE4m3}) {
      const CacheShape shape = {
          .spec = {.name = str_cat("t9_l33_r6_", format_name(values), "_", format_name(cache))},
          .t = 9,
          .l = 33,
          .r = 6,
          .values = values,
          .cache = cache,
          .page_size = 4,
          .scale = cache == Format::kE4m3 ? 0.021f : 1.0f};
      add_write_case(list, shape);
      add_gather_case(list, shape);
    }
  }
  for (const Format cache : {Format::kBf16, Format::kE4m3}) {
    for (int64_t t : {1, 64, 512, 4096}) {
      const CaseSpec spec = {.name = str_cat("mla_t", t, "_", format_name(cache)),
                             .op = "kv_write",
                             .bench = true,
                             .phase = phase_of_case(true, t),
                             .columns = str_cat("M=", t, ";D=576")};
      if (t <= 512) add_write_case(list, {.spec = spec, .t = t, .cache = cache});
      if (t >= 512) add_gather_case(list, {.spec = spec, .t = t, .cache = cache});
    }
  }
  const ReferenceLimit limit{.most_tokens = 2048,
                             .why = "not of the 23; the tables of the layer end at 2,048 tokens"};
  for (const ReferencePoint& p : reference_points(list, "kv_write", limit)) {
    add_reference_case(list, p, {.op = "kv_write"}, [&](CaseList& one) {
      add_write_case(
          one, {.spec = {.name = "reference", .bench = true, .columns = "D=576"}, .t = p.tokens()});
    });
  }
  const auto shape_of = [](const RecordedCall& call, const CaseSpec& spec) {
    return CacheShape{.spec = spec,
                      .t = call.dim("c", 0),
                      .l = call.dim("c", 1),
                      .r = call.dim("k_pe", 1),
                      .values = call.format("c"),
                      .cache = call.format("cache"),
                      .page_size = call.dim("cache", 1),
                      .pages = call.dim("cache", 0),
                      .padding = false,
                      .c_gap = call.row_gap("c"),
                      .k_pe_gap = call.row_gap("k_pe")};
  };
  list.serve_calls("kv_write", [=](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_write_case(one, shape_of(call, spec));
  });
  list.serve_calls("kv_gather", [=](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    CacheShape s = shape_of(call, spec);
    s.logical_pages = call.dim("pages", 0);
    add_gather_case(one, s);
  });
}

}  // namespace fathom
