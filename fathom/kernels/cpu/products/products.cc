#include "fathom/kernels/cpu/products/products.h"

#include <algorithm>
#include <cstdlib>

#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/kernels/cpu/products/run_products.h"

namespace fathom {
namespace {

/// What a row group costs beyond its rows, in rows: reading and decoding its weights.
constexpr int64_t kGroupCost = 6;

/// Below this many products (groups * (kGroupCost + rows) * k) a second thread costs more than it
/// saves: about two microseconds of one core.
constexpr int64_t kSerialWork = 1 << 16;

/// The list of (matrix, part of its rows, row group), groups innermost, and its cut into threads.
/// A position in the list is counted in cost, so that every thread gets the same amount.
class WorkList {
 public:
  WorkList(const Products& p, int num_threads) : p_(p) {
    int64_t active = 0;
    for (int64_t m = 0; m < p.num_matrices; ++m)
      active += p.num_rows(m) > 0 ? 1 : 0;
    const int64_t units = active * p.groups;
    // Fewer row groups than threads can share fairly: cut the rows of x as well.
    if (units > 0) max_parts_ = std::max<int64_t>(1, ceil_div<int64_t>(4 * num_threads, units));
    for (int64_t m = 0; m < p.num_matrices; ++m)
      total_ += matrix_cost(m);
  }

  int64_t total() const { return total_; }

  /// Calls f(item) for the items of thread `thread` of `num_threads`.
  template <class F>
  void for_items(int thread, int num_threads, F&& f) const {
    const int64_t begin = total_ * thread / num_threads;
    const int64_t end = total_ * (thread + 1) / num_threads;
    int64_t at = 0;
    for (int64_t m = 0; m < p_.num_matrices && at < end; ++m) {
      const int64_t parts = num_parts(m);
      for (int64_t part = 0; part < parts; ++part) {
        const RowRange rows =
            static_partition(p_.num_rows(m), static_cast<int>(part), static_cast<int>(parts));
        const int64_t group_cost = kGroupCost + rows.end - rows.begin;
        // A group belongs to the thread in whose range it begins.
        const int64_t first = group_at(begin - at, group_cost);
        const int64_t last = group_at(end - at, group_cost);
        if (first < last) f(WorkItem{m, first, last, rows.begin, rows.end});
        at += p_.groups * group_cost;
      }
    }
  }

 private:
  int64_t num_parts(int64_t m) const {
    constexpr int64_t kMinRows = 32;
    const int64_t rows = p_.num_rows(m);
    if (rows == 0) return 0;
    return std::min(max_parts_, ceil_div(rows, kMinRows));
  }

  int64_t matrix_cost(int64_t m) const {
    return p_.groups * (num_parts(m) * kGroupCost + p_.num_rows(m));
  }

  int64_t group_at(int64_t cost, int64_t group_cost) const {
    return std::clamp<int64_t>(cost <= 0 ? 0 : ceil_div(cost, group_cost), 0, p_.groups);
  }

  const Products& p_;
  int64_t max_parts_ = 1;
  int64_t total_ = 0;
};

ElementType element_type(Format format) {
  if (format == Format::kF16) return ElementType::kF16;
  return format == Format::kBf16 ? ElementType::kBf16 : ElementType::kF32;
}

Products make_common(const View& x, const QuantView& w, const View& y) {
  FATHOM_CHECK(w.layout != WeightLayout::kPairs, "weights in pairs are for a GPU");
  Products p;
  p.n = w.rows();
  p.k = w.cols();
  p.groups = ceil_div(p.n, kTileRows);
  p.rows = x.dim(0);
  p.x = x.data;
  p.y = y.data;
  p.x_type = element_type(x.format);
  p.y_type = element_type(y.format);
  p.x_row_stride = x.stride(0);
  p.y_row_stride = y.stride(0);
  if (w.layout == WeightLayout::kRows16) {
    p.tiles = w.values.as<const uint8_t>();
    p.group_bytes = rows16_group_bytes(w.format(), p.k);
    p.scales = w.scales.as<const float>();
    p.group_scales = rows16_group_scales(w.format(), p.k);
    p.global = w.global.as<const float>();
  } else {
    p.codes = w.values.as<const uint8_t>();
    p.row_bytes = value_bytes_for(w.format(), 1, p.k);
    if (w.format() == Format::kFp8Block) p.block_scales = w.scales.as<const float>();
  }
  return p;
}

}  // namespace

void WeightSource::not_held(Kind wanted, Kind found) {
  FATHOM_CHECK(wanted == found,
               str_cat("a loop wants weights of kind ", static_cast<int>(wanted),
                       " (WeightSource::Kind), but the call has kind ", static_cast<int>(found)));
  std::abort();
}

Products make_products(const View& x, const QuantView& w, const View& y) {
  Products p = make_common(x, w, y);
  if (w.values.rank == 3) {
    p.num_matrices = w.values.dim(0);
    p.x_matrix_stride = x.stride(1);
    p.y_matrix_stride = y.stride(1);
  }
  return p;
}

Result<Products> make_grouped_products(const View& x,
                                       const QuantView& w,
                                       const View& offsets,
                                       const View& y) {
  Products p = make_common(x, w, y);
  p.num_matrices = w.values.dim(0);
  p.offsets = offsets.as<const int32_t>();
  int32_t previous = 0;
  for (int64_t e = 0; e <= p.num_matrices; ++e) {
    const int32_t offset = p.offsets[e];
    if (offset < previous || offset > p.rows) [[unlikely]] {
      return invalid_argument(str_cat("offsets[", e, "] is ", offset, ", expected ", previous,
                                      " to ", p.rows, ": they count rows of x and never decrease"));
    }
    previous = offset;
  }
  return p;
}

Status run_products(Exec& ex, const Products& p, ProductLoop loop) {
  const WorkList list(p, ex.num_threads);
  if (list.total() == 0) return {};
  auto* scratch = static_cast<std::byte*>(ex.workspace);
  const int64_t scratch_bytes = product_scratch_bytes(p.rows, p.k);
  const auto run_part = [&](int thread, int num_threads) {
    list.for_items(thread, num_threads,
                   [&](const WorkItem& item) { loop(p, item, scratch + thread * scratch_bytes); });
  };
  if (list.total() * p.k <= kSerialWork) {
    run_part(0, 1);
  } else {
    ex.pool->run(run_part);
  }
  return {};
}

int64_t product_scratch_bytes(int64_t rows, int64_t k) {
  const int64_t row_block = std::min(rows, kRowBlock);
  // Accumulators of four groups, copies of rows in bf16.
  const int64_t avx512 = kRowBlock * 4 * kTileRows * 4 + kPaddedRows * align_up(k, kPaddedK) * 2;
  // Decoded tiles, tiles of x, sums of a block of groups.
  const int64_t tile_rows = align_up<int64_t>(std::min(rows, kTileBlockRows), 16);
  const int64_t amx = kTilePanelBytes + kTileSpareBytes +
                      tile_rows * (kTileChunkK * 2 + kTileBlockGroups * kTileRows * 4);
  // A panel, accumulators of one group, a chunk of every row in float32.
  const int64_t avx2 = kPanelBytes + row_block * (kTileRows + kChunkK) * 4;
  // Sixteen decoded rows, accumulators of one group.
  const int64_t portable = (kTileRows * k + row_block * kTileRows) * 4;
  return align_up<int64_t>(std::max({amx, avx512, avx2, portable}), 64);
}

}  // namespace fathom
