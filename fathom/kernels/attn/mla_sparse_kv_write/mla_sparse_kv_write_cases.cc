#include <memory>

#include "fathom/kernels/attn/cache_row_oracle.h"
#include "fathom/kernels/attn/mla_sparse_kv_write/mla_sparse_kv_write.h"
#include "fathom/kernels/conformance/kernel_case.h"

namespace fathom {
namespace {

struct Shape {
  CaseSpec spec;
  int64_t t;
  int64_t l = 512;
  int64_t r = 64;
  Format format = Format::kBf16;
  CacheScale scale = CacheScale::kAmax;
  int64_t page_size = 64;
  bool padding = true;  ///< the third token goes nowhere
};

void add(CaseList& list, const Shape& s) {
  add_case<MlaSparseKvWrite>(list, s.spec, [s](CaseBuilder<MlaSparseKvWrite>& c) {
    c.set_batch(s.t);
    const Fill fill{.dist = s.spec.bench ? Dist::kNormal : Dist::kMixedRows, .scale = 4};
    const Tensor latent =
        c.input({s.t, s.l}, s.format, fill, {.row_gap = s.r, .rows_per_batch = 1});
    const Tensor k_pe = c.input({s.t, s.r}, s.format, fill, {.row_gap = s.l, .rows_per_batch = 1});
    const Tensor slots = c.input({s.t}, Format::kI64, {}, {.rows_per_batch = 1});
    const int64_t pages = 2 * s.t / s.page_size + 2;
    const int64_t num_slots = pages * s.page_size;
    slots.fill([&](int64_t t) { return s.padding && t == 2 ? -1 : num_slots - 1 - 2 * t; });
    const auto token_of = std::make_shared<std::vector<int64_t>>(num_slots, -1);
    for (int64_t t = 0; t < s.t; ++t) {
      if (slots[t] >= 0) (*token_of)[static_cast<size_t>(slots[t])] = t;
    }
    const oracle::RowKind kind{.values = Format::kE4m3,
                               .scales = Format::kF32,
                               .group = 128,
                               .rope = true,
                               .scale = s.scale};
    const oracle::RowTensors rows = oracle::make_rows(c, kind, pages, s.page_size, s.l + s.r, s.r);
    c.bind([=](const Binding& at) {
      return MlaSparseKvWrite::Args{.c = at(latent),
                                    .k_pe = at(k_pe),
                                    .slots = at(slots),
                                    .values = at(rows.values),
                                    .rope = at(rows.rope),
                                    .scales = at(rows.scales),
                                    .scale = s.scale};
    });
    oracle::expect_cache_rows(c, rows, gates::row_op(Format::kBf16), {},
                              [=](int64_t slot, std::vector<double>& row) {
                                const int64_t t = (*token_of)[static_cast<size_t>(slot)];
                                if (t < 0) return false;
                                row = latent.row(t);
                                const std::vector<double> pe = k_pe.row(t);
                                row.insert(row.end(), pe.begin(), pe.end());
                                return true;
                              });
  });
}

}  // namespace

void add_mla_sparse_kv_write_cases(CaseList& list) {
  for (const CacheScale scale : {CacheScale::kAmax, CacheScale::kPowerOfTwo}) {
    const std::string_view rule = scale == CacheScale::kAmax ? "amax" : "power_of_two";
    for (int64_t t : {0, 1, 2, 3, 7, 67}) {
      for (int64_t page_size : {1, 64}) {
        add(list, {.spec = {.name = str_cat("t", t, "_page", page_size, "_", rule)},
                   .t = t,
                   .scale = scale,
                   .page_size = page_size});
      }
    }
    for (int64_t l : {128, 384}) {
      for (int64_t r : {0, 2, 33}) {
        add(list, {.spec = {.name = str_cat("t9_l", l, "_r", r, "_f32_", rule)},
                   .t = 9,
                   .l = l,
                   .r = r,
                   .format = Format::kF32,
                   .scale = scale,
                   .page_size = 3});
      }
    }
  }
  for (int64_t t : {1, 64, 512, 4096}) {
    CaseSpec spec = timed_spec("v3_2", "kv_write", t);
    spec.columns = str_cat("M=", t, ";D=576");
    add(list, {.spec = spec, .t = t, .padding = false});
  }
}

}  // namespace fathom
