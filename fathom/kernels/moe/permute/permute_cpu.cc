#include <algorithm>
#include <cstring>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/kernels/moe/permute/permute_rows.h"

namespace fathom {
namespace {

// memcpy is as fast as a copy gets on every instruction set.
Status permute_rows(Exec& ex, const PermuteRows::Args& a) {
  const int64_t element = element_bytes(a.x.format);
  const int64_t row_bytes = a.x.dim(1) * element;
  const auto* source = a.x.as<const std::byte>();
  auto* target = a.y.as<std::byte>();
  const auto* src_row = a.src_row.as<const int32_t>();
  for_rows(ex, a.y.dim(0), 2 * row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::byte* y = target + r * a.y.stride(0) * element;
      if (src_row[r] < 0) {
        std::memset(y, 0, static_cast<size_t>(row_bytes));
      } else {
        std::memcpy(y, source + src_row[r] * a.x.stride(0) * element,
                    static_cast<size_t>(row_bytes));
      }
    }
  });
  return {};
}

/// Calls f(row begin, row end, column begin, column end): rows are shared out, or, where there is
/// one row alone, its columns.
template <class F>
void for_parts(Exec& ex, int64_t rows, int64_t cols, int64_t bytes_per_row, F f) {
  constexpr int64_t kColumnBlock = 64;  // four vectors: no two threads share one
  if (rows == 1 && bytes_per_row > kSerialBytes) {
    ex.pool->for_rows((cols + kColumnBlock - 1) / kColumnBlock, [&](int64_t begin, int64_t end) {
      f(0, 1, begin * kColumnBlock, std::min(cols, end * kColumnBlock));
    });
    return;
  }
  for_rows(ex, rows, bytes_per_row, [&](int64_t begin, int64_t end) { f(begin, end, 0, cols); });
}

int64_t unpermute_bytes_per_row(const UnpermuteWeightedSum::Args& a) {
  return a.y.dim(1) * (a.dest.dim(1) * element_bytes(a.x.format) + 2 * element_bytes(a.y.format));
}

/// Element (i, j) of a matrix, or `absent`.
float load(const View& v, int64_t i, int64_t j, float absent) {
  if (!v.present()) return absent;
  return with_float_type(v.format, [&]<class T>(T) { return to_float(v.row<const T>(i)[j]); });
}

template <class X, class Y>
void unpermute_row(const UnpermuteWeightedSum::Args& a,
                   int64_t t,
                   int64_t col_begin,
                   int64_t col_end) {
  const auto* dest = a.dest.row<const int32_t>(t);
  for (int64_t d = col_begin; d < col_end; ++d) {
    float sum = load(a.add, t, d, 0.0f);
    for (int64_t k = 0; k < a.dest.dim(1); ++k) {
      if (dest[k] < 0) continue;
      sum += load(a.weights, t, k, 1.0f) * to_float(a.x.row<const X>(dest[k])[d]);
    }
    a.y.row<Y>(t)[d] = from_float<Y>(sum);
  }
}

Status unpermute_portable(Exec& ex, const UnpermuteWeightedSum::Args& a) {
  with_float_type(a.x.format, [&]<class X>(X) {
    with_float_type(a.y.format, [&]<class Y>(Y) {
      for_parts(ex, a.y.dim(0), a.y.dim(1), unpermute_bytes_per_row(a),
                [&](int64_t begin, int64_t end, int64_t col_begin, int64_t col_end) {
                  for (int64_t t = begin; t < end; ++t) {
                    unpermute_row<X, Y>(a, t, col_begin, col_end);
                  }
                });
    });
  });
  return {};
}

Status unpermute_avx512(Exec& ex, const UnpermuteWeightedSum::Args& a) {
  for_parts(ex, a.y.dim(0), a.y.dim(1), unpermute_bytes_per_row(a),
            [&](int64_t begin, int64_t end, int64_t col_begin, int64_t col_end) {
              avx512::unpermute_rows(a, begin, end, col_begin, col_end);
            });
  return {};
}

template <class X, class Y>
void topk_sum_row(const TopkSum::Args& a, int64_t t) {
  for (int64_t d = 0; d < a.y.dim(1); ++d) {
    float sum = 0.0f;
    for (int64_t k = 0; k < a.x.dim(1); ++k)
      sum += to_float(a.x.row<const X>(t)[k * a.x.stride(1) + d]);
    a.y.row<Y>(t)[d] = from_float<Y>(sum * a.factor);
  }
}

int64_t topk_sum_bytes_per_row(const TopkSum::Args& a) {
  return a.y.dim(1) * (a.x.dim(1) + 1) * element_bytes(a.x.format);
}

Status topk_sum_portable(Exec& ex, const TopkSum::Args& a) {
  with_float_type(a.x.format, [&]<class X>(X) {
    with_float_type(a.y.format, [&]<class Y>(Y) {
      for_rows(ex, a.y.dim(0), topk_sum_bytes_per_row(a), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
          topk_sum_row<X, Y>(a, t);
      });
    });
  });
  return {};
}

Status topk_sum_avx512(Exec& ex, const TopkSum::Args& a) {
  for_rows(ex, a.y.dim(0), topk_sum_bytes_per_row(a),
           [&](int64_t begin, int64_t end) { avx512::topk_sum_rows(a, begin, end); });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

void PermuteRows::bytes(const Args& a, Cost& cost) {
  const int64_t row = bytes_for(a.x.format, 1, a.x.dim(1));
  const int64_t rows = a.src_row.dim(0);
  cost.bytes_read = std::min(a.x.dim(0), rows) * row + operand_bytes(a.src_row);
  cost.bytes_written = rows * row;
}

Status PermuteRows::check(const Args& a) {
  FATHOM_TRY(check_same_format("x", a.x, "y", a.y));
  return check_indices("src_row", a.src_row, a.x.dim(0));
}

Status UnpermuteWeightedSum::check(const Args& a) {
  return check_indices("dest", a.dest, a.x.dim(0));
}

constinit const VariantTable<PermuteRows> permute_rows_cpu{
    {"portable", Isa::kPortable, "", kTraits, permute_rows},
};

constinit const VariantTable<UnpermuteWeightedSum> unpermute_weighted_sum_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, unpermute_avx512},
    {"portable", Isa::kPortable, "", kTraits, unpermute_portable},
};

constinit const VariantTable<TopkSum> topk_sum_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, topk_sum_avx512},
    {"portable", Isa::kPortable, "", kTraits, topk_sum_portable},
};

}  // namespace fathom
