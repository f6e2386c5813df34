#include <cstring>
#include <type_traits>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/kv_write/kv_write.h"
#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {

void KvWrite::bytes(const Args& a, Cost& cost) {
  const int64_t values = a.c.dim(0) * a.cache.dim(2);
  cost.bytes_read = values * element_bytes(a.c.format) + a.c.dim(0) * 8;
  cost.bytes_written = values * element_bytes(a.cache.format);
}

void KvGather::bytes(const Args& a, Cost& cost) {
  const int64_t values = a.c.dim(0) * a.cache.dim(2);
  cost.bytes_read = values * element_bytes(a.cache.format) + a.pages.dim(0) * 4;
  cost.bytes_written = values * element_bytes(a.c.format);
}

Status check_slots(const View& slots, const View& cache) {
  if (!slots.readable()) return {};
  const int64_t num_slots = cache.dim(0) * cache.dim(1);
  for (int64_t t = 0; t < slots.dim(0); ++t) {
    const int64_t slot = slots.as<int64_t>()[t];
    if (slot >= -1 && slot < num_slots) continue;
    return invalid_argument(
        str_cat("slots[", t, "] is ", slot, " but the cache has slots 0..", num_slots - 1));
  }
  return {};
}

Status check_pages(const int32_t* pages, int64_t begin, int64_t end, int64_t num_pages) {
  for (int64_t i = begin; i < end; ++i) {
    if (pages[i] >= 0 && pages[i] < num_pages) continue;
    return invalid_argument(str_cat("page ", i, " is number ", pages[i],
                                    " but the cache has pages 0..", num_pages - 1));
  }
  return {};
}

Status check_block_table(const View& kv_lens,
                         const View& block_table,
                         int64_t page_size,
                         int64_t num_pages,
                         std::string_view keys) {
  if (!kv_lens.readable() || !block_table.readable()) return {};
  const int64_t most = block_table.dim(1) * page_size;
  for (int64_t b = 0; b < kv_lens.dim(0); ++b) {
    const int64_t length = kv_lens.as<int32_t>()[b];
    if (length < 0 || length > most) {
      return invalid_argument(str_cat("kv_lens[", b, "] is ", length,
                                      " but the block table has room for ", most, " ", keys));
    }
    Status pages =
        check_pages(block_table.row<int32_t>(b), 0, ceil_div(length, page_size), num_pages);
    if (!pages.ok()) return std::move(pages).add_context(str_cat("block_table[", b, "]"));
  }
  return {};
}

Status KvWrite::check(const Args& a) {
  FATHOM_TRY(check_same_format("c", a.c, "k_pe", a.k_pe));
  FATHOM_TRY(check_scale("scale", a.scale, a.cache.format));
  return check_slots(a.slots, a.cache);
}

Status KvGather::check(const Args& a) {
  FATHOM_TRY(check_same_format("c", a.c, "k_pe", a.k_pe));
  FATHOM_TRY(check_scale("scale", a.scale, a.cache.format));
  const int64_t page_size = a.cache.dim(1);
  const int64_t T = a.c.dim(0);
  if (T == 0) return {};
  if (a.begin < 0 || a.begin > a.pages.dim(0) * page_size - T) {
    return invalid_argument(str_cat("tokens ", a.begin, "..", a.begin + T - 1,
                                    " are asked for but ", a.pages.dim(0), " pages of ", page_size,
                                    " tokens are given"));
  }
  if (!a.pages.readable()) return {};
  return check_pages(a.pages.as<int32_t>(), a.begin / page_size, (a.begin + T - 1) / page_size + 1,
                     a.cache.dim(0));
}

namespace {

/// to = convert(from / scale); a copy if the formats agree, as the scale is 1 then.
template <class From, class To>
void store_values(const From* from, To* to, int64_t n, float scale) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(To));
  } else {
    for (int64_t i = 0; i < n; ++i)
      to[i] = from_float<To>(to_float(from[i]) / scale);
  }
}

/// to = convert(code * scale); a copy if the formats agree, as the scale is 1 then.
template <class From, class To>
void load_values(const From* from, To* to, int64_t n, float scale) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(To));
  } else {
    for (int64_t i = 0; i < n; ++i)
      to[i] = from_float<To>(to_float(from[i]) * scale);
  }
}

Status kv_write_portable(Exec& ex, const KvWrite::Args& a) {
  const int64_t L = a.c.dim(1);
  const int64_t R = a.k_pe.dim(1);
  with_activation_type(a.c.format, [&]<class A>(A) {
    with_cache_type(a.cache.format, [&]<class C>(C) {
      for_rows(ex, a.c.dim(0), 8 * (L + R), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t slot = a.slots.as<int64_t>()[t];
          if (slot < 0) continue;
          C* key = slot_data<C>(a.cache, slot);
          store_values(a.c.row<A>(t), key, L, a.scale);
          store_values(a.k_pe.row<A>(t), key + L, R, a.scale);
        }
      });
    });
  });
  return {};
}

Status kv_gather_portable(Exec& ex, const KvGather::Args& a) {
  const int64_t L = a.c.dim(1);
  const int64_t R = a.k_pe.dim(1);
  const int64_t page_size = a.cache.dim(1);
  with_activation_type(a.c.format, [&]<class A>(A) {
    with_cache_type(a.cache.format, [&]<class C>(C) {
      for_rows(ex, a.c.dim(0), 8 * (L + R), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t token = a.begin + t;
          const int64_t page = a.pages.as<int32_t>()[token / page_size];
          const C* key = slot_data<C>(a.cache, page * page_size + token % page_size);
          load_values(key, a.c.row<A>(t), L, a.scale);
          load_values(key + L, a.k_pe.row<A>(t), R, a.scale);
        }
      });
    });
  });
  return {};
}

}  // namespace

constinit const VariantTable<KvWrite> kv_write_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, kv_write_portable},
};

constinit const VariantTable<KvGather> kv_gather_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, kv_gather_portable},
};

}  // namespace fathom
