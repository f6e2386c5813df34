#include "fathom/kernels/moe/fp8_group_gemm/skewed_schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "fathom/kernels/cpu/products/decoded_rows.h"

namespace fathom {
namespace {

/// What reading and decoding an expert's weights costs, in rows.
constexpr int64_t kWeightCost = 6;

/// Products (rows * n * k) below which one thread does all: about ten microseconds.
constexpr int64_t kSerialProducts = 1 << 20;

int64_t load_of(const Products& p, int64_t e) {
  const int64_t rows = p.num_rows(e);
  return rows == 0 ? 0 : rows + kWeightCost;
}

/// The thread with the least work, the first of several.
int lightest(const std::array<int64_t, ThreadPool::kMaxThreads>& work, int num_threads) {
  return static_cast<int>(std::min_element(work.begin(), work.begin() + num_threads) -
                          work.begin());
}

struct Schedule {
  const Products& p;
  ProductLoop loop;
  const int32_t* owner;
  std::byte* scratch;
  int64_t scratch_bytes;

  void run_part(int thread, int num_threads) const {
    for (int64_t e = 0; e < p.num_matrices; ++e) {
      if (p.num_rows(e) == 0) continue;
      RowRange groups{0, p.groups};
      if (owner[e] < 0) {
        groups = static_partition(p.groups, thread, num_threads);
      } else if (owner[e] != thread) {
        continue;
      }
      if (groups.begin == groups.end) continue;
      loop(p, {e, groups.begin, groups.end, 0, p.num_rows(e)}, scratch + thread * scratch_bytes);
    }
  }
};

}  // namespace

void deal_experts(const Products& p, int num_threads, int32_t* order, int32_t* owner) {
  int64_t count = 0;
  for (int64_t e = 0; e < p.num_matrices; ++e) {
    owner[e] = -1;
    if (p.num_rows(e) > 0 && p.num_rows(e) < kHeavyRows) order[count++] = static_cast<int32_t>(e);
  }
  std::sort(order, order + count, [&](int32_t a, int32_t b) {
    return load_of(p, a) != load_of(p, b) ? load_of(p, a) > load_of(p, b) : a < b;
  });
  // Too few experts to give every thread one: all threads share each of them.
  if (count < num_threads) return;
  std::array<int64_t, ThreadPool::kMaxThreads> work;
  std::fill_n(work.begin(), num_threads, 0);
  for (int64_t i = 0; i < count; ++i) {
    const int thread = lightest(work, num_threads);
    owner[order[i]] = thread;
    work[static_cast<size_t>(thread)] += load_of(p, order[i]);
  }
}

int64_t skewed_workspace(int64_t num_experts) {
  return 2 * align_up<int64_t>(num_experts * 4, 64);
}

Status run_skewed_products(Exec& ex, const Products& p, ProductLoop loop) {
  WorkspaceCut cut(ex.workspace);
  auto* order = cut.take<int32_t>(p.num_matrices);
  auto* owner = cut.take<int32_t>(p.num_matrices);
  const int64_t rows = p.num_matrices == 0 ? 0 : p.offsets[p.num_matrices] - p.offsets[0];
  const bool serial = ex.num_threads == 1 || rows * p.n * p.k <= kSerialProducts;
  const int threads = serial ? 1 : ex.num_threads;
  deal_experts(p, threads, order, owner);
  const Schedule schedule{.p = p,
                          .loop = loop,
                          .owner = owner,
                          .scratch = static_cast<std::byte*>(ex.workspace) + cut.bytes(),
                          .scratch_bytes = product_scratch_bytes(p.rows, p.k)};
  if (serial) {
    schedule.run_part(0, 1);
  } else {
    ex.pool->run([&](int thread, int num_threads) { schedule.run_part(thread, num_threads); });
  }
  return {};
}

}  // namespace fathom
